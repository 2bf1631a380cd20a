"""Help as plain text: every flag's names on lines of their own, its help below them, at any width."""

from collections.abc import Iterator
from shutil import get_terminal_size
from textwrap import fill
from typing import Any, Final

MAX_WIDTH: Final = 100
VARIABLES: Final = "An environment variable sets a flag's default: {variable} for {flag}."


def help_text(command: Any, ctx: Any) -> str:
    """Usage, description, and every flag by panels: its names on lines of their own, its help below them."""
    width = min(get_terminal_size().columns, MAX_WIDTH)
    blocks = [_filled(f"Usage: {ctx.command_path} {usage_of(command)}", width, 0)]
    blocks.append(_filled(command.help or "", width, 2))
    panels: dict[str, list[str]] = {}
    for panel, names, text in (*_parameters(command, ctx), *_commands(command, ctx)):
        panels.setdefault(panel, []).append(f"{_filled(names, width, 2)}\n{_filled(text, width, 6)}")
    blocks += [f"{panel}:\n" + "\n".join(entries) for panel, entries in panels.items()]
    with_variable = [param for param in command.get_params(ctx) if param.envvar]
    if with_variable:
        blocks.append(
            _filled(VARIABLES.format(variable=with_variable[0].envvar, flag=with_variable[0].opts[0]), width, 0)
        )
    return "\n\n".join(blocks) + "\n"


def _filled(text: str, width: int, indent: int) -> str:
    """Lines broken between words only, however long a word is."""
    margin = " " * indent
    return fill(
        " ".join(text.split()),
        max(width, indent + 10),
        initial_indent=margin,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    )


def usage_of(command: Any) -> str:
    """Flags and arguments in short."""
    if hasattr(command, "commands"):
        return "[OPTIONS] COMMAND ..."
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    return " ".join(("[OPTIONS]", *(_bracketed(param) for param in arguments)))


def _bracketed(argument: Any) -> str:
    name = argument_name(argument) + ("..." if argument.nargs != 1 else "")
    return name if argument.required else f"[{name}]"


def argument_name(argument: Any) -> str:
    return str(argument.metavar or argument.name).upper()


def _parameters(command: Any, ctx: Any) -> Iterator[tuple[str, str, str]]:
    """Panel, names and help of every argument and flag that is shown."""
    for param in command.get_params(ctx):
        if getattr(param, "hidden", False):
            continue
        if param.param_type_name == "argument":
            yield "Arguments", argument_name(param), describe(param)
        else:
            panel = getattr(param, "rich_help_panel", None) or "Options"
            yield panel, names_of(param), describe(param)


def names_of(param: Any) -> str:
    """All names of a flag and what follows them."""
    short_first = sorted(param.opts, key=lambda name: name.startswith("--"))
    names = ", ".join((*short_first, *param.secondary_opts))
    return names if param.is_flag else f"{names} {param.metavar}"


def describe(param: Any) -> str:
    """A parameter's help, the names to choose among, and its default."""
    parts = [param.help or ""]
    choices = getattr(param.type_descriptor, "choices", None)
    if choices:
        parts.append(f"One of {', '.join(choices)}.")
    if param.required:
        parts.append("[needed]")
    elif isinstance(param.default, bool):
        parts += [f"[{param.opts[0]}]"] * param.default
    elif isinstance(param.default, str | int | float) and param.default != "":
        parts.append(f"[{param.default:g}]" if isinstance(param.default, float) else f"[{param.default}]")
    return " ".join(part for part in parts if part)


def _commands(command: Any, ctx: Any) -> Iterator[tuple[str, str, str]]:
    """The commands of a group."""
    for name, item in getattr(command, "commands", {}).items():
        if not item.hidden:
            yield "Commands", name, item.help or ""
