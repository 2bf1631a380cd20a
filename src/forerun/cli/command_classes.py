"""Commands whose help is plain text that fits any width, and whose usage errors are one line.

The panels that typer draws with rich cut flag names on narrow terminals and read [words] in brackets as styles.
"""

import sys
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from forerun.cli.failures import FAULTY_SETTING, say, shows_errors
from forerun.cli.flags import with_readers
from forerun.cli.foreign_names import FOREIGN_COMMANDS, FOREIGN_FLAGS
from forerun.cli.help_text import help_text


class PlainCommand(TyperCommand):
    """A command with plain help."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings | {"rich_markup_mode": None})

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(help_text(self, ctx))


class PlainGroup(TyperGroup):
    """A group of commands with plain help; the outermost one shows usage errors."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"rich_markup_mode": None})

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(help_text(self, ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that was named, as typer finds it; for a name from another program an error with advice."""
        if ctx.parent is None and args[0] not in self.commands and args[0] in FOREIGN_COMMANDS:
            ctx.fail(f"there is no command {args[0]}: {FOREIGN_COMMANDS[args[0]]}")
        return super().resolve_command(ctx, args)

    def main(self, *arguments: Any, **settings: Any) -> Any:
        """Run a command and leave with its exit code."""
        try:
            code = super().main(*arguments, **settings | {"standalone_mode": False})
        except typer.TyperException as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                print(error.format_message())
            else:
                say(f"forerun: error: {usage_error(error)}")
            sys.exit(FAULTY_SETTING)
        sys.exit(code if isinstance(code, int) else 0)


def add_command(app: typer.Typer, command: Callable[..., None]) -> None:
    """Add a command to a group. Its values are parsed by type, and its errors become messages and exit codes."""
    app.command(cls=PlainCommand)(with_readers(shows_errors(command)))


def usage_error(error: typer.TyperException) -> str:
    """The message with the wrong input, the valid input, and the help command."""
    ctx = getattr(error, "ctx", None)
    param = getattr(error, "param", None)
    flag = str(getattr(error, "option_name", ""))
    if isinstance(error, typer.BadParameter) and error.message and param is not None:
        text = f"{_where(ctx, param)} {error.message}"
    elif flag in FOREIGN_FLAGS:
        text = f"there is no flag {flag}: {FOREIGN_FLAGS[flag]}"
    elif flag and type(error).__name__ == "NoSuchOption":
        nearest = getattr(error, "possibilities", None) or ()
        text = f"there is no flag {flag}" + (f"; did you mean {' or '.join(sorted(nearest))}?" if nearest else "")
    else:
        text = " ".join(error.format_message().split()).rstrip(".")
        text = text[:1].lower() + text[1:]
    return text if ctx is None else f"{text} (see {ctx.command_path} --help)"


def _where(ctx: Any, param: Any) -> str:
    """The flag, or the environment variable that set it."""
    source = None if ctx is None else ctx.get_parameter_source(param.name)
    if source is not None and source.name == "ENVIRONMENT":
        return f"{param.envvar}, which sets {param.opts[0]},"
    return str(param.opts[0]) if param.param_type_name == "option" else str(param.name).upper()
