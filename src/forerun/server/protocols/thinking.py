"""Separates a model's reasoning from its answer by the <think> tags of its chat template."""

from typing import Final

BEGIN, END = "<think>", "</think>"
SPACE: Final = " \n\r\t"


def has_thinking(template_source: str) -> bool:
    """True if a chat template has think tags."""
    return END in template_source


class ThinkingSplit:
    """Splits streamed text into reasoning and answer: the text between the first pair of tags is reasoning.

    The opening tag counts only at the very start of the text, or at the end of the prompt. Text that may turn out to be
    part of a tag is held back, and so is white space before a tag; white space around tags is dropped.
    """

    def __init__(self, rendered_prompt: str) -> None:
        self._is_undecided = True
        self._is_thinking = False
        self._is_leading = True  # only white space so far, in this part
        self._held = ""
        if rendered_prompt.rstrip(SPACE).endswith(BEGIN):
            self._is_undecided, self._is_thinking = False, True

    def feed(self, text: str) -> tuple[str, str]:
        """Add text; returns the new reasoning and answer text that is certain now."""
        self._held += text
        if self._is_undecided and not self._decide():
            return "", ""
        if not self._is_thinking:
            return "", self._answer()
        thought, mark, rest = self._held.partition(END)
        if mark:
            self._is_thinking, self._held = False, rest
            thought = self._without_lead(thought.rstrip(SPACE))
            self._is_leading = True
            return thought, self._answer()
        certain = len(self._held) - num_of_mark(self._held, END)
        certain = len(self._held[:certain].rstrip(SPACE))  # white space before the closing tag is dropped
        thought, self._held = self._held[:certain], self._held[certain:]
        return self._without_lead(thought), ""

    def flush(self) -> tuple[str, str]:
        """The text that was held back, at the end of the stream."""
        held, self._held = self._held, ""
        return (held, "") if self._is_thinking else ("", held)

    def _decide(self) -> bool:
        """Decide whether the text begins with reasoning; False if that is not certain yet."""
        seen = self._held.lstrip(SPACE)
        if seen.startswith(BEGIN):
            self._is_thinking, self._held = True, seen[len(BEGIN) :]
        elif BEGIN.startswith(seen):
            return False
        else:
            self._is_leading = False
        self._is_undecided = False
        return True

    def _answer(self) -> str:
        text, self._held = self._held, ""
        return self._without_lead(text)

    def _without_lead(self, text: str) -> str:
        if self._is_leading:
            text = text.lstrip(SPACE)
            self._is_leading = not text
        return text


def num_of_mark(text: str, mark: str) -> int:
    """Length of the longest suffix of the text that is a proper prefix of the tag."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if mark.startswith(text[-n:])), 0)
