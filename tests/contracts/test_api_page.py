"""docs/api.md describes every public name as the code does; run as a program, this file rewrites it."""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any

import forerun
from tests.contracts.written_page import WrittenPage

MAX_LINE = 100
FIRST = ("load", "Engine", "EngineConfig", "SamplingParams", "GenerationStream", "Generation")
SECTION = re.compile(r"^(Args|Returns|Raises|Source):(.*)$")
ENTRY = re.compile(r"^    (\w[\w, ]*): (.*)$")


def reference() -> str:
    """A section for each public name: those that every program uses, then the others, the errors last."""
    rest = sorted(set(forerun.__all__) - set(FIRST), key=lambda name: (name.endswith("Error"), name))
    return "\n".join(part for name in (*FIRST, *rest) for part in described(name, getattr(forerun, name)))


def described(name: str, item: Any) -> Iterator[str]:
    yield f"## {name}\n"
    if inspect.isfunction(item):
        yield code(f"forerun.{name}", item)
        yield from text_of(item)
    elif is_dataclass(item):
        yield from text_of(item, has_args=False)
        bases = [base for base in reversed(item.__mro__) if is_dataclass(base)]
        said = {name: text for base in bases for name, text in entries(inspect.getdoc(base) or "").items()}
        yield "".join(row(field, said) for field in fields(item))
    elif issubclass(item, Enum):
        yield from text_of(item)
        yield "".join(f"* `{member.name}`: `{member.value!r}`\n" for member in item)
    else:
        is_made_by_users = inspect.isfunction(item.__init__) and item.__init__.__doc__ is not None
        if is_made_by_users:
            yield code(name, item)
        yield from text_of(item, item.__init__ if is_made_by_users else None, has_args=is_made_by_users)
    yield from members(name, item)


def members(name: str, item: Any) -> Iterator[str]:
    """What a class of the package defines for its users, with a sentence on each."""
    own = vars(item) if inspect.isclass(item) else {}
    for member, value in own.items():
        if member.startswith("_") or isinstance(item, type(Enum)):
            continue
        if isinstance(value, classmethod):
            value = value.__func__
        if isinstance(value, property):
            about = " ".join((inspect.getdoc(value.fget) or "").split())
            result = kind(inspect.signature(value.fget).return_annotation)
            yield f"`.{member}`: `{result}`{about and f'. {about}'}\n"
        elif inspect.isfunction(value):
            yield f"### {name}.{member}\n"
            yield code(f".{member}", value)
            yield from text_of(value)


def code(name: str, item: Any) -> str:
    """The call on one line, or on a line for each argument."""
    signature = inspect.signature(item)
    shown = [argument(parameter) for parameter in signature.parameters.values() if parameter.name != "self"]
    keyword = [at for at, item in enumerate(signature.parameters.values()) if item.kind is item.KEYWORD_ONLY]
    if keyword:
        shown.insert(keyword[0] - ("self" in signature.parameters), "*")
    result = "" if inspect.isclass(item) else f" -> {kind(signature.return_annotation)}"
    line = f"{name}({', '.join(shown)}){result}"
    if len(line) > MAX_LINE:
        line = f"{name}(\n" + "".join(f"    {part},\n" for part in shown) + f"){result}"
    return f"```text\n{line}\n```\n"


def argument(parameter: inspect.Parameter) -> str:
    prefix = {parameter.VAR_KEYWORD: "**", parameter.VAR_POSITIONAL: "*"}.get(parameter.kind, "")
    default = "" if parameter.default is parameter.empty else f" = {value(parameter.default)}"
    return f"{prefix}{parameter.name}: {kind(parameter.annotation)}{default}"


def row(field: Field[Any], said: Mapping[str, str]) -> str:
    """A field with what the class or its flag says of it."""
    made = {} if field.default_factory is dict else getattr(field.default_factory, "__name__", "").lstrip("_") + "()"
    default = value(field.default) if field.default is not MISSING else "" if field.default_factory is MISSING else made
    about = said.get(field.name) or re.sub(
        r" \[.*\]$", "", field.metadata.get("help", "")
    )  # less what flags default to
    flag = f" `{field.metadata['flags'][0]}`" if "flags" in field.metadata else ""
    shown = f"`{kind(field.type)}`" + (f" = `{default}`" if default != "" else "")
    return f"* `{field.name}` ({shown}){': ' * bool(about)}{about}{flag}\n"


def kind(annotation: Any) -> str:
    """A type without the modules that it lives in."""
    shown = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", shown)


def value(default: object) -> str:
    return (
        repr(dict(default))
        if isinstance(default, Mapping)
        else str(default)
        if isinstance(default, Enum)
        else repr(default)
    )


def entries(about: str) -> dict[str, str]:
    """What a docstring's Args say, by name; of names that share an entry, the others refer to the first."""
    found: dict[str, str] = {}
    name = ""
    for line in about.splitlines():
        if (entry := ENTRY.match(line)) is not None:
            name, *others = entry[1].split(", ")
            found[name] = entry[2]
            found |= dict.fromkeys(others, f"see `{name}`.")
        elif line.startswith("        ") and name:
            found[name] += f" {line.strip()}"
        else:
            name = ""
    return found


def text_of(item: Any, more: Any = None, *, has_args: bool = True) -> Iterator[str]:
    """A docstring, and that of a constructor: paragraphs, and a list of what its sections name."""
    about = "\n\n".join(filter(None, (inspect.getdoc(item), inspect.getdoc(more) if more is not None else None)))
    lines: list[str] = []
    for line in about.splitlines():
        if (section := SECTION.match(line)) is not None:
            lines.append(f"{section[1]}:{section[2]}\n")
        elif (entry := ENTRY.match(line)) is not None:
            lines.append(f"* `{entry[1].replace(', ', '`, `')}`: {entry[2]}")
        elif line.startswith("        ") and lines[-1].startswith("* "):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line.strip())
    text = "\n".join(lines)
    yield f"{(text if has_args else text.partition('Args:')[0]).strip()}\n"


PAGE = WrittenPage(name="api.md", module="test_api_page", reference=reference)


def test_the_page_of_the_api_is_that_of_the_code() -> None:
    PAGE.require_up_to_date()


if __name__ == "__main__":
    PAGE.write()
