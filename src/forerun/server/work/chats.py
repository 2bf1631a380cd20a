"""Conversations to token ids, by the model's chat template, and what their answers may look like."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from forerun.core.errors import ConfigError
from forerun.core.grammar import Grammar
from forerun.server.protocols.answer import EventParser
from forerun.server.protocols.asked import Chat
from forerun.server.protocols.errors import ApiError, invalid
from forerun.server.protocols.thinking import END, has_thinking
from forerun.server.work.parsers import PlainParser, ThinkingParser
from forerun.text.bounded_child import LimitError, Limits
from forerun.text.chat_template import ChatTemplate
from forerun.text.message import Message
from forerun.text.tokenizer import SEAM

if TYPE_CHECKING:  # imports torch, which is loaded in the engine's thread after the server listens
    from forerun.engine.engine import Engine

ADD_PROMPT: Final = "add_generation_prompt"  # a variable of every template
EFFORT: Final = "reasoning_effort"  # the name of this variable in all templates that have it
THINKS: Final = ("enable_thinking", "thinking")  # names of the variable that switches thinking


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadChat:
    """A conversation as the model reads it.

    Args:
        text: as formatted by the chat template.
        make_parser: makes a parser of an answer's text.
        grammar: what the answer must look like.
        shown_tokens: special tokens that the parser needs in the text.
        ignored: names of fields that the template does not use.
    """

    ids: Sequence[int]
    text: str
    make_parser: Callable[[], EventParser]
    grammar: Grammar | None
    shown_tokens: Sequence[str] = ()
    ignored: Sequence[str] = ()


class ChatReader:
    """Reads conversations. Its methods block, so they run in threads.

    Args:
        template: of the engine's tokenizer.
    """

    def __init__(self, engine: "Engine", template: ChatTemplate, limits: Limits) -> None:
        self._tokenizer, self._template, self._limits = engine.tokenizer, template, limits
        self._defaults = engine.config.chat_template_kwargs
        self._has_thinking = has_thinking(template.source)
        self._asked_for = frozenset[str]()  # variables of the template, known after `begin`

    def begin(self) -> None:
        """Find the chat template's variables, which takes a moment.

        Raises:
            ConfigError: the chat template is invalid, or takes too long.
        """
        self._asked_for = self._template.variables(self._limits)

    def close(self) -> None:
        self._template.close()

    def read(self, chat: Chat, shape: Grammar | None = None) -> ReadChat:
        """A conversation's ids, and what is needed to read its answer.

        Args:
            shape: what the answer must look like, without its thoughts.

        Raises:
            ApiError: the template refuses the conversation.
        """
        variables, ignored = self._variables(chat)
        text = self._rendered(chat.messages, variables, continues=chat.continues)
        thinks = self._has_thinking and not chat.continues  # a continued text is an answer, not reasoning
        if shape is not None and thinks and not text.rstrip().endswith(END):
            shape = replace(shape, after=END)
        return ReadChat(
            ids=self._tokenizer.encode_rendered(text), text=text.replace(SEAM, ""), grammar=shape, ignored=ignored,
            make_parser=(lambda: ThinkingParser(text)) if thinks else PlainParser,
        )  # fmt: skip

    def _variables(self, chat: Chat) -> tuple[dict[str, object], list[str]]:
        """The template's variables for a conversation, and the names of those that it does not use."""
        known, ignored = dict(self._defaults), []
        for name, value in chat.variables.items():
            if name in self._asked_for or name == ADD_PROMPT:
                known[name] = value
            else:
                ignored.append(name)
        for param, names, value in thinking_variables(chat):
            used = [name for name in names if name in self._asked_for]
            known |= {name: value for name in used if name not in chat.variables}
            ignored += [] if used else [param]
        return known, ignored

    def _rendered(
        self, messages: Sequence[Message], variables: Mapping[str, object], *, continues: bool
    ) -> str:  # fmt: skip
        return rendered(self._template, self._tokenizer.parted(messages), variables, self._limits, continues=continues)


def thinking_variables(chat: Chat) -> list[tuple[str, Sequence[str], Any]]:
    """What a conversation says of thinking: the field's name, names of template variables, and their value."""
    found: list[tuple[str, Sequence[str], Any]] = []
    if chat.effort == "none":
        found.append((EFFORT, THINKS, False))
    elif chat.effort is not None:
        found.append((EFFORT, (EFFORT,), chat.effort))
    if chat.thinks is not None:
        found.append(("thinking", THINKS, chat.thinks))
    return found


def rendered(
    template: ChatTemplate, messages: Sequence[Message], variables: Mapping[str, object], limits: Limits,
    *, continues: bool = False,
) -> str:  # fmt: skip
    """The text of a conversation, as formatted by the chat template.

    Raises:
        ApiError: the template refuses the conversation, or takes too much time or memory.
    """
    try:
        return template.render(messages, variables, limits, continue_final_message=continues)
    except LimitError:
        raise template_limit() from None
    except ConfigError as error:
        reason = str(error)
        raise invalid(f"{reason[:1].upper()}{reason[1:]}.", param="messages") from None


def template_limit() -> ApiError:
    return invalid(
        "The model's chat template takes too much time or memory for these messages.",
        param="messages",
        code="template_limit",
    )
