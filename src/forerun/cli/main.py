"""The command line. Importing this must stay cheap: whatever is slow to import is imported where it is used."""

import io
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from forerun import __version__
from forerun.cli.bench import bench
from forerun.cli.chat import chat
from forerun.cli.check import check
from forerun.cli.generate import generate
from forerun.cli.inspect import inspect
from forerun.cli.plan import plan
from forerun.cli.prepare import prepare
from forerun.cli.worker import worker


class PlainGroup(TyperGroup):
    """Shows its own help and usage errors as plain text, which spares importing rich; commands keep their panels."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"rich_markup_mode": None})


app = typer.Typer(
    name="forerun",
    cls=PlainGroup,
    help="Fast decoding of one language-model request, with exactly the text the model would have given.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.command()(generate)
app.command()(chat)
app.command()(inspect)
app.command()(check)
app.command()(worker)
app.command()(plan)
app.command()(prepare)
app.add_typer(bench)


def print_version(is_asked: bool = True) -> None:
    """Versions of forerun and of what its speed depends on."""
    if is_asked:
        from platform import python_version

        print(f"forerun {__version__} (Python {python_version()}, torch {_version_of('torch')})")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=print_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command("version")
def show_version() -> None:
    """Print the version."""
    print_version()


def main() -> None:
    """Run the command line; characters the terminal cannot show are replaced."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    app(prog_name="forerun")


def _version_of(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
