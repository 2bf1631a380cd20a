"""A conversation: its messages, and the model's input made from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from forerun.core.errors import ConfigError
from forerun.core.json_file import short

Message: TypeAlias = Mapping[str, Any]


def plain_message(message: object) -> Message:
    """A message with text as content and without keys whose value is None. Only in a message with tool calls, content
    may be None, because some templates require that.
    """
    if not isinstance(message, Mapping):
        raise ConfigError(f"a chat message is {short(message)}: give a mapping with role and content")
    has_calls = bool(message.get("tool_calls"))
    known = {key: value for key, value in message.items() if value is not None or (has_calls and key == "content")}
    content = known.get("content", "")
    if content is None or isinstance(content, str):
        return known
    if not isinstance(content, Sequence):
        raise ConfigError(f"the content of a chat message is {short(content)}: give a text, or a list of text parts")
    return {**known, "content": "\n".join(map(_text_of, content))}


def _text_of(part: object) -> str:
    match part:
        case {"type": "text" | "input_text" | "output_text", "text": str(text)} | {
            "type": "refusal",
            "refusal": str(text),
        }:
            return text
        case _:
            raise ConfigError(
                f'a part of a chat message is {short(part)}: only {{"type": "text", "text": ...}} can be read, since '
                "these models read only text"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A user's message and its answer, which the user may have stopped before its end."""

    said: str
    answer: str
    is_stopped: bool = False


class Conversation:
    """Turns of a chat. With a chat template they are sent as messages, without one as a single text.

    A turn is added when it is complete: `prompt` gives the model's input, `add` records the turn with its answer. So a
    turn that failed changes nothing. The oldest `num_dropped` turns are kept, but not sent any more.
    """

    def __init__(self, *, has_template: bool, system_prompt: str | None) -> None:
        self._has_template = has_template
        self.system_prompt = system_prompt
        self.turns: list[Exchange] = []
        self.num_dropped = 0

    def clear(self) -> None:
        """Remove everything except the system prompt."""
        self.turns = []
        self.num_dropped = 0

    def prompt(self, said: str, num_dropped: int | None = None) -> str | Sequence[Mapping[str, str]]:
        """The model's input for this message, without this many of the oldest turns."""
        return self._prompt(self.turns[self.num_dropped if num_dropped is None else num_dropped :], said)

    def going_on(self) -> str | Sequence[Mapping[str, str]]:
        """The model's input for continuing the last answer, with which it ends."""
        *sent, last = self.turns[self.num_dropped :]
        asked = self._prompt(sent, last.said)
        if isinstance(asked, str):
            return asked + last.answer
        return [*asked, {"role": "assistant", "content": last.answer}]

    def _prompt(self, sent: Sequence[Exchange], said: str) -> str | Sequence[Mapping[str, str]]:
        system = self.system_prompt
        if self._has_template:
            messages = [{"role": "system", "content": system}] if system else []
            for turn in sent:
                messages.append({"role": "user", "content": turn.said})
                messages.append({"role": "assistant", "content": turn.answer})
            return [*messages, {"role": "user", "content": said}]
        return "".join([f"{system}\n" if system else "", *(f"{turn.said}{turn.answer}\n" for turn in sent), said])

    def add(self, said: str, answer: str, *, is_stopped: bool = False) -> None:
        """Record a turn."""
        self.turns.append(Exchange(said=said, answer=answer, is_stopped=is_stopped))

    def take_back(self) -> Exchange | None:
        """Remove the last turn and return it; None if there is none. `num_dropped` is adjusted if it was dropped."""
        if not self.turns:
            return None
        turn = self.turns.pop()
        self.num_dropped = min(self.num_dropped, len(self.turns))
        return turn
