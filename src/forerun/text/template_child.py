"""A process that runs a chat template within limits of memory and time, and may be killed at any moment.

Jinja's immutable sandbox gives a template no access to files and attributes. The environment is the same as in
transformers, so that a template renders the same text in both (tests compare the two).
"""

import json
from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import Final, NoReturn

from jinja2 import Template, TemplateError, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import TrackingCodeGenerator
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from forerun.text.output.discover import discover
from forerun.wires.child_loop import Answer, Said, answer_questions

MOST_REASON: Final = 500  # characters of a template's message


def main() -> None:
    """Answer until the input ends."""
    answer_questions(answerer)


def answerer(head: Said) -> Answer:
    """Compile the template; return the function that answers questions about it."""
    template = compile_template(head["source"])
    if isinstance(template, dict):
        return lambda _: template
    return partial(answered, head["source"], template)


def compile_template(source: str) -> Template | dict[str, str]:
    """The compiled template, or why it is invalid."""
    try:
        return environment().from_string(source)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - Jinja compiles an untrusted program to Python, which can raise anything
        return {"invalid": fault_of(error)}


def answered(source: str, template: Template, asked: Said) -> Said:
    """The answer to a question: a conversation's text, the template's variables or traits, or why there is none."""
    try:
        if "given" not in asked:
            return {"names": sorted(names(source))}
        template.globals["strftime_now"] = datetime.fromisoformat(asked["now"]).strftime
        if "traits" in asked:
            return {"traits": asdict(discover(source, names(source), template.render, asked["given"]))}
        return {"text": template.render(asked["given"])}
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - every error of an untrusted program is its answer
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
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, loopcontrols],
        optimized=False,
        finalize=_as_it_is,
    )
    made.filters["tojson"] = _to_json
    made.globals["raise_exception"] = _raise_exception
    made.globals["strftime_now"] = datetime.now().strftime
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
