"""A checkpoint's Jinja chat template: messages to the text its model was trained on.

Templates come with checkpoints and are not trusted: they run in Jinja's immutable sandbox. The environment is the one
transformers gives them, so that a template renders the same text in both (tests compare the two).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeAlias

from jinja2 import TemplateError, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import TrackingCodeGenerator
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from forerun.core.errors import ConfigError, require
from forerun.core.json_file import short

Message: TypeAlias = Mapping[str, Any]
MOST_REASON: Final = 500  # letters of what a template says
TEMPLATE_FILE: Final = "chat_template.jinja"
USUAL: Final[Mapping[str, object]] = MappingProxyType({"tools": None, "documents": None, "add_generation_prompt": True})
NO_VARIABLES: Final[Mapping[str, object]] = MappingProxyType({})
OPEN_END: Final = "\ufdd1 "  # where an answer goes on; a character that no text has. The space tells of trimming.


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """A template's source with the special tokens it may mention, such as bos_token."""

    source: str
    special_tokens: Mapping[str, str]

    def require_valid(self) -> None:
        """Raise ConfigError where the source is no Jinja template."""
        try:
            _environment().from_string(self.source)
        except Exception as error:  # Python's own too, of what Jinja makes of it: a template is a stranger's program
            raise ConfigError(
                f"the chat template {short(self.source)} is no Jinja template ({fault_of(error)}): correct it, or give "
                "another"
            ) from error

    def variables(self) -> frozenset[str]:
        """What else the template asks for, by name, such as enable_thinking.

        Raises:
            ConfigError: it is no Jinja template.
        """
        self.require_valid()
        environment = _environment()
        reader = TrackingCodeGenerator(environment)
        reader.optimizer = None  # which would compute what is constant
        reader.visit(environment.parse(self.source))
        known = {*USUAL, *self.special_tokens, *environment.globals, "messages"}
        return frozenset(reader.undeclared_identifiers - known)

    def render(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, object] = NO_VARIABLES,
        *,
        continue_final_message: bool = False,
    ) -> str:
        """The text of these messages, ending where the assistant's next answer begins.

        Args:
            continue_final_message: end it behind the last message instead, which is the assistant's and goes on; as in
                transformers.
            variables: what else the template may ask for, such as enable_thinking. They go before the variables of the
                same names that every template has: the special tokens, tools, documents and add_generation_prompt.

        Keys whose value is None are left out, as transformers does: templates handle a missing key, not a null. Content
        in parts, as OpenAI's API takes it, is joined by line breaks, as vLLM does: these models' templates expect text.

        Raises:
            ConfigError: there are no messages, or the template refuses them, or is broken; or the last message cannot
                be continued.
        """
        if not messages:
            raise ConfigError("the list of chat messages is empty; give at least one message, such as a user's")
        require("messages" not in variables, "messages is no variable of a chat template: give them as the prompt")
        known = [plain_message(message) for message in messages]
        if continue_final_message:
            known[-1] = _with_open_end(known[-1])
            variables = {**variables, "add_generation_prompt": False}
        try:
            template = _environment().from_string(self.source)
            text = template.render({**USUAL, **self.special_tokens, **variables, "messages": known})
        except Exception as error:  # any, since a template is a stranger's program
            raise ConfigError(
                f"the chat template refused these messages: {fault_of(error)}; "
                f"roles were {[message.get('role') for message in messages]}"
            ) from error
        return _cut_at_open_end(text) if continue_final_message else text


def fault_of(error: Exception) -> str:
    """What an error of a template says; its kind too where it is no word of the template's own."""
    text = str(error).partition("\n")[0][:MOST_REASON]
    if isinstance(error, TemplateError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def plain_message(message: object) -> Message:
    """A message with text for content and without keys of value None."""
    if not isinstance(message, Mapping):
        raise ConfigError(f"a chat message is {short(message)}: give a mapping with role and content")
    known = {key: value for key, value in message.items() if value is not None}
    content = known.get("content", "")
    if isinstance(content, str):
        return known
    if not isinstance(content, Sequence):
        raise ConfigError(f"the content of a chat message is {short(content)}: give a text, or a list of text parts")
    return {**known, "content": "\n".join(map(_text_of, content))}


def _with_open_end(message: Message) -> Message:
    require(
        message.get("role") == "assistant" and bool(message.get("content")),
        "only an answer can go on: the last message must be the assistant's, with a text for content",
    )
    return {**message, "content": message["content"] + OPEN_END}


def _cut_at_open_end(text: str) -> str:
    """The text up to the open end; a template that trims answers takes the space at its end away."""
    before, mark, after = text.rpartition(OPEN_END[0])
    require(mark != "", "the chat template leaves out the last message, so that it cannot go on: end with a user's")
    return before if after.startswith(OPEN_END[1]) else before.rstrip()


def _text_of(part: object) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case _:
            raise ConfigError(
                f'a part of a chat message is {short(part)}: only {{"type": "text", "text": ...}} can be read, since '
                "these models see text alone"
            )


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols],
        optimized=False, finalize=_as_it_is,
    )  # fmt: skip
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


@pass_context
def _as_it_is(_: Context, value: object) -> object:
    """What is printed. As it asks for the context, Jinja computes nothing while it compiles, such as 7**(9**9) in a
    branch that is never taken."""
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


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
