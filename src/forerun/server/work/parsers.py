"""Turns an answer's text into its parts where the output has no tool calls."""

from forerun.server.protocols.thinking import ThinkingSplit
from forerun.text.output.events import Content, OutputEvent, Reasoning


class PlainParser:
    """A text without parts."""

    def feed(self, text: str) -> list[OutputEvent]:
        """The parts that are certain with this text."""
        return [Content(text)] if text else []

    def finish(self) -> list[OutputEvent]:
        """The parts that were held back."""
        return []


class ThinkingParser:
    """Reasoning and an answer; see `ThinkingSplit`."""

    def __init__(self, rendered_prompt: str) -> None:
        self._split = ThinkingSplit(rendered_prompt)

    def feed(self, text: str) -> list[OutputEvent]:
        """The parts that are certain with this text."""
        return parts(*self._split.feed(text))

    def finish(self) -> list[OutputEvent]:
        """The parts that were held back."""
        return parts(*self._split.flush())


def parts(thought: str, content: str) -> list[OutputEvent]:
    found: list[OutputEvent] = [Reasoning(thought)] if thought else []
    return [*found, Content(content)] if content else found
