"""A process that runs a chat template within limits of memory and time, and may be killed at any moment.

Jinja's immutable sandbox keeps a template from files and attributes. The environment is the one that transformers gives
to templates, so a template renders the same text in both (tests compare the two). The process reads lines of JSON,
first the template and then requests, and writes a line for each request; see `BoundedChild`.
"""

import json
import resource
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Final, NoReturn

from jinja2 import Template, TemplateError, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import TrackingCodeGenerator
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

SPARE_CPU_S: Final = 1  # the limit is in whole seconds; the waiting process gives up sooner
MOST_REASON: Final = 500  # characters of a template's error message


def main() -> None:
    """Answer requests until the input ends."""
    head = json.loads(sys.stdin.buffer.readline())
    source, compiled = head["source"], None
    for line in sys.stdin.buffer:
        try:
            asked = json.loads(line)
            limit(asked["max_s"], asked["max_bytes"])
            if compiled is None:
                compiled = compile_template(source)
            answer = compiled if isinstance(compiled, dict) else answered(source, compiled, asked)
            text = json.dumps(answer)
        except MemoryError:
            text = json.dumps({"costly": "it took more memory than it may have"})
        sys.stdout.buffer.write(text.encode() + b"\n")
        sys.stdout.buffer.flush()


def limit(max_s: float, max_bytes: int) -> None:
    """Let the system end this process if it exceeds these limits, even if no other process is left to kill it."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(usage.ru_utime + usage.ru_stime + max_s) + SPARE_CPU_S
    for kind, most in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, max_bytes)):
        _, hard = resource.getrlimit(kind)
        with suppress(ValueError, OSError):  # a system without this limit, as macOS is for memory
            resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def compile_template(source: str) -> Template | dict[str, str]:
    """The compiled template, or why it is invalid."""
    try:
        return environment().from_string(source)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - Jinja compiles an untrusted program to Python, which can raise anything
        return {"invalid": fault_of(error)}


def answered(source: str, template: Template, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The text of a conversation, or the template's variables, or why there is no text."""
    try:
        if "given" not in asked:
            return {"names": sorted(names(source))}
        template.globals["strftime_now"] = partial(strftime, datetime.fromisoformat(asked["now"]))
        return {"text": template.render(asked["given"])}
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever an untrusted program raises is its answer
        return {"refused": fault_of(error)}


def names(source: str) -> set[str]:
    """The variables that a template uses."""
    parsed = environment()
    reader = TrackingCodeGenerator(parsed)
    reader.optimizer = None  # it would compute constant expressions
    reader.visit(parsed.parse(source))
    return set(reader.undeclared_identifiers - set(parsed.globals))


def fault_of(error: Exception) -> str:
    """The message of a template's error, with its type if it is not one of Jinja's template errors."""
    text = str(error).partition("\n")[0][:MOST_REASON]
    if isinstance(error, TemplateError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def environment() -> ImmutableSandboxedEnvironment:
    """The environment that templates run in."""
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols],
        optimized=False, finalize=_as_it_is,
    )  # fmt: skip
    made.filters["tojson"] = _to_json
    made.globals["raise_exception"] = _raise_exception
    made.globals["strftime_now"] = partial(strftime, datetime.now())
    return made


@pass_context
def _as_it_is(_: Context, value: object) -> object:
    """The value to print, unchanged. Because this function takes the context, Jinja does not compute constants when it
    compiles, such as 7**(9**9) in a branch that is never taken."""
    return value


class _GenerationBlock(Extension):
    """Renders `{% generation %}...{% endgeneration %}` as its body: it only marks text for training."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance variable

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of Jinja's own filter, which would reach the model as text."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def strftime(now: datetime, format: str) -> str:
    """The time of the request in this form."""
    return now.strftime(format)
