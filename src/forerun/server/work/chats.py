"""Turns conversations into token ids with the model's chat template, and finds the form of their answers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from forerun.core.errors import ConfigError
from forerun.core.grammar import Grammar
from forerun.server.protocols.errors import invalid
from forerun.server.protocols.generation_request import Chat
from forerun.server.work.answer_grammar import answer_grammar
from forerun.server.work.engine_call import Prompt
from forerun.text.chat_template import ChatTemplate
from forerun.text.control_tokens import SEAM
from forerun.text.conversation import Message
from forerun.text.output.messages import prepared
from forerun.text.output.parser import OutputParser
from forerun.text.output.thoughts import thought_marks
from forerun.text.output.traits import TemplateTraits
from forerun.wires.bounded_child import LimitError, Limits

if TYPE_CHECKING:  # imports torch, which is loaded in the engine's thread after the server listens
    from forerun.engine.engine import Engine

ADD_PROMPT: Final = "add_generation_prompt"  # a variable of every template
EFFORT: Final = "reasoning_effort"  # the name of this variable in all templates that have it
THINKS: Final = ("enable_thinking", "thinking")  # names of the variable that switches thinking


class ChatReader:
    """Reads conversations. Its methods block, so they run in threads.

    Args:
        template: of the engine's tokenizer.
        max_thought_tokens: for conversations that set no limit on thoughts; see `SamplingParams`.
    """

    def __init__(
        self, engine: "Engine", template: ChatTemplate, limits: Limits, max_thought_tokens: int | None = None
    ) -> None:
        self._tokenizer = engine.tokenizer
        self._template = template
        self._limits = limits
        self._max_thought_tokens = max_thought_tokens
        self._defaults = engine.config.chat_template_kwargs
        self._traits = TemplateTraits()  # known after `read_traits`

    def read_traits(self) -> None:
        """Find the form of conversations that the chat template accepts and of its model's answers; takes a moment.

        Raises:
            ConfigError: the chat template is invalid, or takes too long.
        """
        self._traits = self._template.traits()

    def close(self) -> None:
        self._template.close()

    def read(self, chat: Chat, shape: Grammar | None) -> Prompt:
        """A conversation's ids, and the form of its answer.

        Args:
            shape: the form that the answer must have, without its thoughts.

        Raises:
            ApiError: the template refuses the conversation.
        """
        if chat.max_thought_tokens is None:
            chat = replace(chat, max_thought_tokens=self._max_thought_tokens)
        variables, ignored = self._variables(chat)
        text = self._rendered(chat, variables)
        plain = text.replace(SEAM, "")
        # A continued text is an answer, not reasoning.
        traits = replace(self._traits, thought=None) if chat.continues else self._traits
        tools = chat.tool_use.callable
        return Prompt(
            ids=self._tokenizer.encode_rendered(text),
            text=plain,
            messages=chat.messages,
            make_parser=lambda make_id: OutputParser(
                traits, tools=tools, rendered_prompt=plain, finds_calls=bool(tools), make_id=make_id
            ),
            grammar=answer_grammar(traits, chat.tool_use, shape, prompt=plain, added=self._tokenizer.id_of_added),
            shown_tokens=sorted(traits.shown_tokens) if needs_marks(traits, has_tools=bool(tools)) else (),
            thoughts=None if chat.continues else thought_marks(traits, plain),
            max_thought_tokens=chat.max_thought_tokens,
            ignored=ignored,
        )

    def _variables(self, chat: Chat) -> tuple[dict[str, object], list[str]]:
        """The template's variables for a conversation, and the names of those that it does not use."""
        known = dict(self._defaults)
        ignored = []
        for name, value in chat.variables.items():
            if name in self._traits.variables or name == ADD_PROMPT:
                known[name] = value
            else:
                ignored.append(name)
        if chat.max_thought_tokens == 0 and chat.thinks is None:  # as the model was trained, where the template can
            known |= {name: False for name in THINKS if name in self._traits.variables and name not in chat.variables}
        for param, names, value in thinking_variables(chat):
            used = [name for name in names if name in self._traits.variables]
            known |= {name: value for name in used if name not in chat.variables}
            ignored += [] if used else [param]
        return known, ignored

    def _rendered(self, chat: Chat, variables: Mapping[str, object]) -> str:
        """The text of a conversation, with seams in texts that look like control tokens.

        Raises:
            ApiError: a message cannot be read, or the template refuses the conversation.
        """
        try:
            messages, more = prepared(self._traits, chat.messages, chat.tool_use.shown)
            parted = self._tokenizer.parted(messages)
        except ConfigError as error:
            raise invalid(sentence(error), param="messages") from None
        marked = self._tokenizer.parted_variables({**variables, **more})
        return rendered(self._template, parted, marked, self._limits, continues=chat.continues)


def thinking_variables(chat: Chat) -> list[tuple[str, Sequence[str], Any]]:
    """A conversation's settings of thinking: the field's name, names of template variables, and their value."""
    found: list[tuple[str, Sequence[str], Any]] = []
    if chat.effort == "none":
        found.append((EFFORT, THINKS, False))
    elif chat.effort is not None:
        found.append((EFFORT, (EFFORT,), chat.effort))
    if chat.thinks is not None:
        found.append(("thinking", THINKS, chat.thinks))
    return found


def needs_marks(traits: TemplateTraits, *, has_tools: bool) -> bool:
    """True if the parser needs marks that may be special tokens."""
    return has_tools or traits.thought is not None or traits.call_format.kind == "harmony"


def rendered(
    template: ChatTemplate,
    messages: Sequence[Message],
    variables: Mapping[str, object],
    limits: Limits,
    *,
    continues: bool = False,
) -> str:
    """The text of a conversation, as formatted by the chat template.

    Raises:
        ApiError: the template refuses the conversation, or takes too much time or memory.
    """
    try:
        return template.render(messages, variables, limits, continue_final_message=continues)
    except LimitError:
        raise invalid(
            "The model's chat template takes too much time or memory for these messages.",
            param="messages",
            code="template_limit",
        ) from None
    except ConfigError as error:
        raise invalid(sentence(error), param="messages") from None


def sentence(error: Exception) -> str:
    """An error's message as a sentence."""
    reason = str(error)
    return f"{reason[:1].upper()}{reason[1:]}."
