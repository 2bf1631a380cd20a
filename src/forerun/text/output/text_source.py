"""Text that arrives in pieces, for readers that are generators: they yield when they need more text."""

from collections.abc import Callable, Generator, Sequence
from typing import Final, TypeAlias, TypeVar

Found = TypeVar("Found")
Step: TypeAlias = Generator[None, None, Found]
SPACE: Final = " \n\r\t"


class NotACallError(Exception):
    """The text that was read is not a call after all, or ends within one."""


class TextSource:
    """The text so far, and how much of it was read.

    A reader decides only by the text after `at`, never by how much of it has arrived, so the result does not depend on
    how the text is cut into pieces.
    """

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.is_over = False
        self.anchor: int | None = None  # where reading may begin again

    def add(self, text: str) -> None:
        """Add text, and drop text that cannot be read again."""
        start = self.at if self.anchor is None else self.anchor
        self.text = self.text[start:] + text
        self.at = self.at - start
        self.anchor = None if self.anchor is None else 0

    def settle(self) -> None:
        """Text up to here is not read again; text after it may be."""
        self.anchor = self.at

    @property
    def rest(self) -> str:
        """The text that was not read yet."""
        return self.text[self.at :]

    def take(self, num: int) -> str:
        """Read `num` characters, which have arrived."""
        self.at += num
        return self.text[self.at - num : self.at]

    def peek(self) -> Step[str]:
        """The next character, without reading it."""
        while self.at == len(self.text):
            yield from self.more()
        return self.text[self.at]

    def more(self) -> Step[None]:
        """Wait for more text.

        Raises:
            NotACallError: the text has ended.
        """
        if self.is_over:
            raise NotACallError
        yield

    def space(self) -> Step[str]:
        """Read white space, up to another character or the end of the text."""
        read = ""
        while True:
            rest = self.rest
            read += self.take(len(rest) - len(rest.lstrip(SPACE)))
            if self.at < len(self.text) or self.is_over:
                return read
            yield

    def expect(self, mark: str) -> Step[None]:
        """Read this text; white space in it and around it may differ.

        Raises:
            NotACallError: there is other text.
        """
        for part in mark.split():
            if not (yield from self.optional(part)):
                raise NotACallError

    def optional(self, *marks: str) -> Step[str]:
        """Read white space and then one of these texts; "" if none of them comes next."""
        yield from self.space()
        mark = yield from self.which(marks)
        self.at += len(mark)
        return mark

    def which(self, marks: Sequence[str]) -> Step[str]:
        """The longest of these texts that comes next; "" if none of them does."""
        while True:
            rest = self.rest
            longer = [mark for mark in marks if len(mark) > len(rest) and mark.startswith(rest)]
            if longer and not self.is_over:
                yield
                continue
            return max((mark for mark in marks if mark and rest.startswith(mark)), key=len, default="")

    def known(self, names: Sequence[str], ends: Sequence[str]) -> Step[str | None]:
        """Read the longest of these names that comes next with one of `ends` behind it; None if none does.

        White space may differ around a name. The end is not read.
        """
        longest_first = sorted(names, key=len, reverse=True)
        yield from self.space()
        while True:
            rest = self.rest
            for name in longest_first:
                found = [num_matched(rest, (name.strip(), end), is_over=self.is_over) for end in ends]
                if any(found):
                    self.take(len(name.strip()))
                    return name
                if None in found:
                    break
            else:
                return None
            yield

    def before(self, marks: Sequence[str], most: int) -> Step[str]:
        """Read the text before the first of these marks, at most `most` characters.

        Raises:
            NotACallError: no mark comes within `most` characters.
        """
        while True:
            rest = self.rest
            places = [place for mark in marks if (place := rest.find(mark)) >= 0]
            longest = max(map(len, marks))
            if places and (len(rest) >= min(places) + longest or self.is_over or len(marks) == 1):
                if min(places) > most:
                    raise NotACallError
                return self.take(min(places))
            if len(rest) > most + longest:
                raise NotACallError
            yield from self.more()


def read_whole(text: str, read: Callable[[TextSource], Step[Found]]) -> Found:
    """The result of a reader for a whole text.

    Raises:
        NotACallError: the text is not what the reader reads, or goes on after it.
    """
    source = TextSource()
    source.add(text)
    source.is_over = True
    try:
        next(read(source))
    except StopIteration as done:
        if source.rest.strip(SPACE):
            raise NotACallError from None
        found: Found = done.value
        return found
    raise AssertionError("a reader waits for more of a whole text")


def num_matched(text: str, marks: Sequence[str], *, is_over: bool) -> int | None:
    """Length of the text's beginning that consists of these marks, with any white space between them.

    Returns:
        0 if the text begins otherwise, None if that depends on text to come.
    """
    at = 0
    for mark in marks:
        if at:
            at += len(text) - at - len(text[at:].lstrip(SPACE))
        if not text.startswith(mark, at):
            return None if mark.startswith(text[at:]) and not is_over else 0
        at += len(mark)
    return at


def num_held(text: str, marks: Sequence[str]) -> int:
    """Length of the longest suffix of the text that is a proper prefix of a mark."""
    return max((num_of_mark(text, mark) for mark in marks), default=0)


def num_of_mark(text: str, mark: str) -> int:
    """Length of the longest suffix of the text that is a proper prefix of this mark."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if mark.startswith(text[-n:])), 0)
