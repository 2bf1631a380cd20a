"""The lines that `inspect` prints about a chat template, and how its model writes thoughts and calls."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from forerun.cli.streams import printable
from forerun.core.errors import ConfigError
from forerun.text.output.traits import CallFormat, TemplateTraits

if TYPE_CHECKING:  # slow to import
    from forerun.text.tokenizer import Tokenizer

KINDS: Final[Mapping[str, str]] = {
    "json": "JSON objects",
    "named": "a name and JSON",
    "tagged": "arguments between marks",
    "pythonic": "f(a=1)",
    "gemma": "call:f{a:1}",
    "harmony": "gpt-oss's messages",
}
WANTS: Final[Mapping[str, str]] = {
    "wants_short_ids": "ids of calls have 9 letters and digits",
    "wants_named_ids": "ids of calls are functions.NAME:NUMBER",
    "wants_single_calls": "one call per message",
    "drops_calls": "earlier calls are left out, so they are written into the content",
    "wants_tool_responses": "results are in the message with the calls",
}


def read_traits(tokenizer: "Tokenizer | None") -> tuple[TemplateTraits | None, str | None]:
    """The traits of the chat template, None without one; and why it could not be tried, None if it could."""
    if tokenizer is None or (template := tokenizer.chat_template) is None:
        return None, None
    try:
        return template.traits(), None
    except ConfigError as error:
        return None, str(error)
    finally:
        template.close()


def template_rows(traits: TemplateTraits) -> list[tuple[str, str]]:
    """A line for tools, calls, arguments, thoughts and roles each, and one for other requirements of the template."""
    roles = {
        "system": traits.takes_system,
        "system later": traits.takes_later_system,
        "developer": traits.takes_developer,
        "tool": traits.takes_tool_role or traits.wants_tool_responses,
    }
    taken, others = ([role for role, is_taken in roles.items() if is_taken is wanted] for wanted in (True, False))
    wants = [said for name, said in WANTS.items() if getattr(traits, name)]
    variable = traits.tools_variable
    rows = [
        ("  tools", f"in the variable {variable}" if variable else "no variable: the system message describes them"),
        ("  calls", _calls(traits.call_format)),
        ("  arguments", "as a mapping" if traits.wants_mapping else "as JSON text"),
        ("  thoughts", " ... ".join(traits.thought) if traits.thought else "no marks of their own"),
        ("  roles", f"user, assistant{''.join(f', {role}' for role in taken)}{_without(others)}"),
        *([("  also", "; ".join(wants))] if wants else []),
        *([("  variables", ", ".join(traits.variables))] if traits.variables else []),
    ]
    return [(label, printable(value)) for label, value in rows]  # an untrusted template chooses its marks


def _calls(format: CallFormat) -> str:
    marks = " ".join(dict.fromkeys(part for mark in format.marks for part in mark.split()))
    return f"{KINDS[format.kind]}, marks {marks}"


def _without(roles: list[str]) -> str:
    return f"; not {', '.join(roles)}" if roles else ""
