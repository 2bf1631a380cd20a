"""Help as plain text: every flag's names on separate lines, its help below them, at any width."""

from shutil import get_terminal_size
from textwrap import fill
from typing import Any, Final

MAX_WIDTH: Final = 100


def help_text(command: Any, ctx: Any) -> str:
    """Usage, description, and every flag by panels: its names on separate lines, its help below them."""
    width = min(get_terminal_size().columns, MAX_WIDTH)
    blocks = [_filled(f"Usage: {ctx.command_path} {usage_of(command)}", width, 0)]
    blocks.append(_filled(command.help or "", width, 2))
    entries = {
        panel: [(names_of(param), describe(param)) for param in params] for panel, params in panels_of(command).items()
    }
    entries.setdefault("Options", []).append((", ".join(sorted(ctx.help_option_names, key=len)), "Show this help."))
    for panel, lines in entries.items():
        texts = [f"{_filled(names, width, 2)}\n{_filled(text, width, 6)}" for names, text in lines]
        blocks += [f"{panel}:\n" + "\n".join(texts)] if texts else []
    commands = _commands(command)
    if commands:
        margin = max(len(name) for name, _ in commands) + 4
        listed = [_filled(text, width, margin, begin=f"  {name}") for name, text in commands]
        blocks.append("Commands:\n" + "\n".join(listed))
    example = next((param for param in command.params if param.envvar), None)
    if example is not None:
        text = f"An environment variable sets a flag's default: {example.envvar} for {example.opts[0]}."
        blocks.append(_filled(text, width, 0))
    return "\n\n".join(blocks) + "\n"


def _filled(text: str, width: int, indent: int, *, begin: str = "") -> str:
    """The text in lines that break only between words; the first line may begin with a name."""
    return fill(
        " ".join(text.split()),
        max(width, indent + 10),
        initial_indent=begin.ljust(indent),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def usage_of(command: Any) -> str:
    """The flags and arguments in a usage line."""
    if hasattr(command, "commands"):
        return "[OPTIONS] COMMAND ..."
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    return " ".join(("[OPTIONS]", *(_bracketed(param) for param in arguments)))


def _bracketed(argument: Any) -> str:
    name = argument_name(argument) + ("..." if argument.nargs != 1 else "")
    return name if argument.required else f"[{name}]"


def argument_name(argument: Any) -> str:
    return str(argument.metavar or argument.name).upper()


def panels_of(command: Any) -> dict[str, list[Any]]:
    """The arguments and flags that are shown, by panel."""
    panels: dict[str, list[Any]] = {}
    for param in command.params:
        if not getattr(param, "hidden", False):
            is_argument = param.param_type_name == "argument"
            panel = "Arguments" if is_argument else getattr(param, "rich_help_panel", None) or "Options"
            panels.setdefault(panel, []).append(param)
    return panels


def names_of(param: Any) -> str:
    """The name of an argument, or all names of a flag and the placeholder of its value."""
    if param.param_type_name == "argument":
        return argument_name(param)
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
        parts.append("[required]")
    elif isinstance(param.default, bool):
        parts += [f"[{param.opts[0]}]"] * param.default
    elif isinstance(param.show_default, str):  # the default of a setting, if its flag is left out
        parts.append(f"[{param.show_default}]")
    elif isinstance(param.default, str | int | float) and param.default != "":
        parts.append(f"[{param.default:g}]" if isinstance(param.default, float) else f"[{param.default}]")
    return " ".join(filter(None, parts))


def _commands(command: Any) -> list[tuple[str, str]]:
    """The commands of a group, with the first sentence of their help, so that all fit on a terminal of 24 lines."""
    items = getattr(command, "commands", {}).items()
    return [(name, item.short_help or first_sentence(item.help)) for name, item in items if not item.hidden]


def first_sentence(text: str | None) -> str:
    return f"{(text or '').partition('.')[0]}."
