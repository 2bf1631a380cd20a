"""What a model thinks, told apart from what it answers, by the marks of its chat template."""

from typing import Final

BEGIN, END = "<think>", "</think>"
SPACE: Final = " \n\r\t"


def has_thinking(template_source: str) -> bool:
    """True for a chat template that knows think marks."""
    return END in template_source


class ThinkingSplit:
    """Parts streamed text into thought and answer: what stands between the first marks is thought.

    A model begins to think at once or not at all. Where the prompt ends with the opening mark, it has begun already.
    Held back is what may turn out to be a part of a mark, and white space around marks, which belongs to neither.
    """

    def __init__(self, rendered_prompt: str) -> None:
        self._is_undecided = True
        self._is_thinking = False
        self._is_leading = True  # only white space so far, in this part
        self._held = ""
        if rendered_prompt.rstrip(SPACE).endswith(BEGIN):
            self._is_undecided, self._is_thinking = False, True

    def feed(self, text: str) -> tuple[str, str]:
        """The thought and the answer that are certain with this text."""
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
        certain = len(self._held[:certain].rstrip(SPACE))  # before the mark, white space is no thought
        thought, self._held = self._held[:certain], self._held[certain:]
        return self._without_lead(thought), ""

    def flush(self) -> tuple[str, str]:
        """What was held back, once no more follows."""
        held, self._held = self._held, ""
        return (held, "") if self._is_thinking else ("", held)

    def _decide(self) -> bool:
        """Whether the text so far says if it begins with a thought."""
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
    """Length of the longest end of the text that is a beginning of the mark."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if mark.startswith(text[-n:])), 0)
