"""The command line. Importing this must stay cheap: slow modules are imported where they are used."""

import errno
import os
import sys
from contextlib import suppress
from typing import Annotated

import typer

from forerun import __version__
from forerun.cli.chat.chat import chat, run
from forerun.cli.check import check
from forerun.cli.command_classes import PlainCommand, add_command
from forerun.cli.demo import demo
from forerun.cli.failures import say
from forerun.cli.foreign_names import unknown_variables
from forerun.cli.generate import generate
from forerun.cli.inspect import inspect
from forerun.cli.lab import WholeGroup
from forerun.cli.models import models, pull
from forerun.cli.serve import serve
from forerun.cli.streams import is_full, let_go, prepare_streams
from forerun.cli.worker import worker

app = typer.Typer(
    name="forerun",
    cls=WholeGroup,
    help="Fast decoding of one language-model request, with exactly the model's own text. forerun chat "
    "starts a chat with smollm2; forerun help COMMAND shows a command's flags.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
for command in (generate, chat, run, serve, demo, models, pull, inspect, check, worker):
    add_command(app, command)


def print_version(is_asked: bool = True) -> None:
    """Print the versions of forerun, Python and torch."""
    if is_asked:
        from platform import python_version

        print(f"forerun {__version__} (Python {python_version()}, torch {_torch_version()})")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=print_version, is_eager=True)
    ] = False,
) -> None:
    if ctx.invoked_subcommand != "worker":  # most are started by an engine, whose command has warned already
        for line in unknown_variables(ctx.command, os.environ):
            say(f"forerun: warning: {line}")


@app.command("help", cls=PlainCommand)
def show_help(
    ctx: typer.Context,
    words: Annotated[list[str] | None, typer.Argument(metavar="COMMAND", help="Name of a command.")] = None,
) -> None:
    """Show the help of forerun, or of one of its commands."""
    ctx.find_root().command.main([*(words or ()), "--help"], prog_name="forerun")


@app.command("version", cls=PlainCommand)
def show_version() -> None:
    """Print the version."""
    print_version()


def main() -> None:
    """Run the command line. Invalid input bytes and full output streams give a message instead of a traceback."""
    prepare_streams()
    try:
        try:
            app(prog_name="forerun")
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno != errno.EPIPE and not is_full(error):
            raise
        let_go(sys.stdout)
        if error.errno != errno.EPIPE:  # a reader that closes the pipe is not an error
            with suppress(OSError):
                say(f"forerun: error: the output cannot be written: {error.strerror}")
        let_go(sys.stderr)
        sys.exit(1)


def _torch_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        return "not installed"
