"""The turns of a conversation, in an order that a chat template accepts."""

from typing import Final

from forerun.text.conversation import Message
from forerun.text.output.traits import TemplateTraits

UNDERSTOOD: Final = "Understood."  # an answer where a template demands one between a tool's result and a user's text


class Turns:
    """Turns in the order that a template accepts.

    Where it demands that users and answers alternate, neighbours of one role are joined; if calls and results of tools
    lie between them, a short turn of the other role is put between.
    """

    def __init__(self, traits: TemplateTraits) -> None:
        self._traits = traits
        self.found: list[Message] = []
        self._spoken: object = "assistant"  # the role of the last turn that counts; a conversation begins with a user's
        self._was_turned = False  # whether the last message became a user's because the template accepts no other role

    @property
    def path(self) -> str:
        """The letters of the turns that decide whether a tool's result is accepted, see `TemplateTraits`."""
        path = ""
        for message in self.found:
            match message:
                case {"role": "tool"}:
                    path = path if "T" in path else path.replace("C", "CT")
                case {"role": "assistant", "tool_calls": [_, *_]}:
                    path = "UC"
                case {"role": "assistant"}:
                    path = (path.rstrip("AU") if "C" in path else "U") + "A"
                case _:
                    path = path.removesuffix("U") + "U"
        return path

    @property
    def end_with_calls(self) -> bool:
        """Whether the last turns are an answer with calls, and results."""
        last = next((message for message in reversed(self.found) if message.get("role") != "tool"), {})
        return bool(last.get("tool_calls"))

    def add(self, message: Message, *, is_turned: bool) -> None:
        """Add a message; `is_turned`: it is a user's because the template does not accept its role."""
        role = message.get("role")
        traits = self._traits
        has_calls = bool(message.get("tool_calls"))
        if role == "assistant" and not (message.get("content") or has_calls or traits.takes_empty_answers):
            return
        last = self.found[-1] if self.found else {}
        counts = role == "user" or (role == "assistant" and not (has_calls and traits.skips_calls))
        is_repeated = traits.alternates and counts and role == self._spoken
        is_beside_turned = role == last.get("role") == "user" and (self._was_turned or is_turned)
        if is_beside_turned:
            self.found[-1] = _joined(last, message, "\n" if self._was_turned and is_turned else "\n\n")
        elif is_repeated and role == last.get("role") and not (last.get("tool_calls") and traits.skips_calls):
            has_both = last.get("content") and message.get("content")
            self.found[-1] = _joined(last, message, "\n\n" if has_both else "")
        else:
            if is_repeated:
                between = ("user", "") if role == "assistant" else ("assistant", UNDERSTOOD)
                self.found.append(dict(zip(("role", "content"), between, strict=True)))
            self.found.append(message)
        self._spoken = role if counts else self._spoken
        self._was_turned = is_turned


def _joined(first: Message, second: Message, joint: str) -> Message:
    """Two turns of one role as one."""
    joined = {**first, **second, "content": f"{first.get('content') or ''}{joint}{second.get('content') or ''}"}
    calls = [*first.get("tool_calls", ()), *second.get("tool_calls", ())]
    return {**joined, "tool_calls": calls} if calls else joined
