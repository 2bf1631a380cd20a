"""The conversation so far, in the model's input form."""

from collections.abc import Mapping, Sequence


class Conversation:
    """Turns of a chat. With a chat template these are messages, without one a single growing text.

    A turn is added when it is over: `prompt` gives what to send, `add` records it with its answer. So a turn that
    failed leaves nothing behind.
    """

    def __init__(self, *, has_template: bool, system_prompt: str | None) -> None:
        self._has_template, self._system_prompt = has_template, system_prompt
        self.clear()

    def clear(self) -> None:
        """Forget everything but the system prompt."""
        system = self._system_prompt
        self._messages: list[Mapping[str, str]] = [{"role": "system", "content": system}] if system else []
        self._text = f"{system}\n" if system else ""

    def prompt(self, said: str) -> str | Sequence[Mapping[str, str]]:
        """The model's input if the user sends this."""
        return [*self._messages, {"role": "user", "content": said}] if self._has_template else self._text + said

    def add(self, said: str, answer: str) -> None:
        """Record a turn."""
        self._messages += [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]
        self._text += f"{said}{answer}\n"
