"""Divides an answer into the model's thoughts and the text that a client sees as the answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from forerun.text.output.harmony_reader import BEGINS, CHANNEL, ENDS, MESSAGE
from forerun.text.output.text_source import SPACE, Step, TextSource, num_held
from forerun.text.output.traits import TemplateTraits

THOUGHTS: Final = "analysis"  # the channel of gpt-oss's thoughts


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtMarks:
    """How thoughts are marked.

    Args:
        begin, end: around a thought; both are empty where thoughts are messages of their own, as gpt-oss's.
        is_open: the prompt has opened the thought.
    """

    begin: str = ""
    end: str = ""
    is_open: bool = False


def thought_marks(traits: TemplateTraits, prompt: str) -> ThoughtMarks | None:
    """The marks of thoughts in an answer to this prompt; None if there are none."""
    if traits.call_format.kind == "harmony":
        return ThoughtMarks()
    if traits.thought is None:
        return None
    begin, end = traits.thought
    return ThoughtMarks(begin=begin, end=end, is_open=prompt.rstrip(SPACE).endswith(begin))


class ThoughtDivider:
    """Divides a text, however it is cut into pieces, into parts that are read as the answer and parts that are not:
    thoughts, their marks with the white space after them, and the headers of messages."""

    def __init__(self, marks: ThoughtMarks) -> None:
        self._source = TextSource()
        self._parts = list[tuple[str, bool]]()
        self._reading = self._read_marked(marks) if marks.end else self._read_messages()
        next(self._reading, None)

    def feed(self, text: str) -> list[tuple[str, bool]]:
        """The parts that are certain now, and whether each is a part of the answer."""
        self._source.add(text)
        return self._more()

    def finish(self) -> list[tuple[str, bool]]:
        """The remaining parts, at the end of the text."""
        self._source.is_over = True
        return self._more()

    def _more(self) -> list[tuple[str, bool]]:
        next(self._reading, None)
        found = self._parts
        self._parts = []
        return found

    def _take(self, num: int, *, is_answer: bool) -> None:
        if num:
            self._parts.append((self._source.take(num), is_answer))

    def _read_marked(self, marks: ThoughtMarks) -> Step[None]:
        source = self._source
        is_thinking = marks.is_open
        if not is_thinking:
            space = yield from source.space()
            is_thinking = (yield from source.which([marks.begin])) != ""
            self._parts.append((space, not is_thinking))
        if is_thinking:
            yield from self._take_up_to([marks.end], is_answer=False)
            space = yield from source.space()
            self._parts.append((space, False))
        while True:
            self._take(len(source.rest), is_answer=True)
            yield

    def _read_messages(self) -> Step[None]:
        source = self._source
        while True:
            is_answer = True
            if (yield from source.which(BEGINS)):  # else a text without a header, which is content
                header = yield from self._take_up_to([MESSAGE], is_answer=False)
                channel = CHANNEL.search(header)
                is_answer = channel is None or channel.group(1) != THOUGHTS
            mark = yield from self._take_up_to(ENDS, is_answer=is_answer)
            if not mark:
                return

    def _take_up_to(self, marks: Sequence[str], *, is_answer: bool) -> Step[str]:
        """Take the text up to one of these marks, and the mark itself unless it begins a message; return the text."""
        source = self._source
        taken = ""
        while True:
            rest = source.rest
            place, mark = min(((at, mark) for mark in marks if (at := rest.find(mark)) >= 0), default=(len(rest), ""))
            num = place if mark or source.is_over else place - num_held(rest, marks)
            taken += rest[:num]
            self._take(num, is_answer=is_answer)
            if mark:
                self._take(0 if mark in BEGINS else len(mark), is_answer=False)
                return taken + mark
            if source.is_over:
                return ""
            yield
