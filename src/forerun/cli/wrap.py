"""Breaks lines between words on a terminal, also when a text arrives piece by piece."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TextIO
from unicodedata import category, east_asian_width

from forerun.cli.streams import RESET, takes_colours

PIECE: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|.", re.DOTALL)  # an escape code, or one character
FENCE: Final = "```"
TAB_STOP: Final = 8  # columns, as terminals have them
CLOSING: Final = ("Po", "Pe", "Pf")  # punctuation that no line begins with


@contextmanager
def wrapped(name: str) -> Iterator[None]:
    """Wrap the lines of stdout or stderr, by name, while this is open, if it is a terminal."""
    stream = getattr(sys, name)
    if not takes_colours(name):
        yield
        return
    setattr(sys, name, WrappedTerminal(stream))
    try:
        yield
    finally:
        setattr(sys, name, stream)


class WrappedTerminal:
    """A terminal on which no word is broken at the end of a line.

    Every character is shown at once. The beginning of a word that turns out to be too long for the rest of its line is
    erased there and shown again on the next. Fenced code and words longer than a line are left to the terminal. The
    text may contain ANSI escape codes. The last column stays free, since terminals disagree on where the cursor is
    after it.
    """

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal
        self._line = ""
        self._is_code = False
        self._column = 0
        self._style = ""  # the escape codes in effect
        self._is_wide = False  # the last character takes two columns
        self._start_word()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._terminal, name)

    def write(self, text: str) -> int:
        """Show a text, with line breaks where it needs them."""
        num_columns = self._num_columns()
        self._terminal.write("".join([self._placed(piece, num_columns) for piece in PIECE.findall(text)]))
        return len(text)

    def _num_columns(self) -> int:
        """Columns that can be used now, as a window can be resized at any time; 0 if the number is unknown."""
        try:
            return max(0, os.get_terminal_size(self._terminal.fileno()).columns - 1)
        except OSError:
            return 0

    def _placed(self, piece: str, num_columns: int) -> str:
        """A character or escape code, with what has to come before it."""
        if piece[0] == "\x1b":
            self._style = "" if piece == RESET else self._style + piece
            self._word += piece
            return piece
        if piece == "\n":
            self._end_line()
            return piece
        self._line += piece
        width = TAB_STOP - self._column % TAB_STOP if piece == "\t" else width_of(piece)
        if self._is_code or num_columns == 0:
            return piece
        return self._space(piece, width, num_columns) if piece in " \t" else self._letter(piece, width, num_columns)

    def _end_line(self) -> None:
        line = self._line.strip()
        if line.startswith(FENCE) and "`" not in line.lstrip("`"):
            self._is_code = not self._is_code
        self._line = ""
        self._column = 0
        self._start_word()

    def _space(self, piece: str, width: int, num_columns: int) -> str:
        """A space, left out where its line is full."""
        if self._column > num_columns:  # after a word longer than a line, which the terminal has broken
            self._column %= num_columns + 1
        has_room = self._column + width <= num_columns
        self._column = self._column + width if has_room else num_columns
        self._start_word()
        return piece if has_room else ""

    def _letter(self, piece: str, width: int, num_columns: int) -> str:
        """A character of a word. A line can also be broken before and after a wide one, such as a Chinese one."""
        if (width == 2 or self._is_wide) and category(piece) not in CLOSING:
            self._start_word()
        self._is_wide = width == 2
        does_break = self._column + width > num_columns and self._column > self._word_width
        shown = self._break_line() if does_break else ""
        self._word += piece
        self._word_width += width
        self._column += width
        return shown + piece

    def _break_line(self) -> str:
        """The output that moves the unfinished word to the next line."""
        erased = f"\x1b[{self._word_width}D\x1b[K" if self._word_width else ""
        style = RESET + self._word_style if "\x1b" in self._word else ""
        self._column = self._word_width
        return f"{erased}\n{style}{self._word}"

    def _start_word(self) -> None:
        self._word = ""
        self._word_style = self._style
        self._word_width = 0
        self._is_wide = False


def width_of(character: str) -> int:
    """Columns of a terminal that a character takes: 2 for wide ones, 0 for those that join the one before."""
    if east_asian_width(character) in "WF":
        return 2
    return 0 if category(character) in ("Mn", "Me", "Cf", "Cc") else 1
