"""No word is broken at the end of a line, however an answer comes in pieces."""

import os
import pty
import random
from collections.abc import Iterator
from typing import TextIO

import pytest

from forerun.cli.wrap import WrappedTerminal
from tests.cli.terminals import lines_of, resize

WORDS = ["a", "of", "there", "streaming", "don't", "well-known", "end.", "extraordinarily", "É", "naïve"]


@pytest.fixture
def terminal() -> Iterator[tuple[TextIO, int]]:
    """A terminal's side to write to, and the file descriptor that shows what was written."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream:
        yield stream, ours
    os.close(ours)


def written(stream: TextIO, ours: int) -> str:
    """What came out at the terminal, and a line break."""
    stream.write("\n~")
    stream.flush()
    raw = b""
    while not raw.endswith(b"~"):
        raw += os.read(ours, 65536)
    return raw.decode().replace("\r", "")[:-1]


def shown(stream: TextIO, ours: int) -> list[str]:
    return lines_of(written(stream, ours))[:-1]


def in_pieces(text: str, chance: random.Random) -> Iterator[str]:
    while text:
        size = chance.randint(1, 7)
        yield text[:size]
        text = text[size:]


def wrapped(terminal: tuple[TextIO, int], text: str, *, num_columns: int, seed: int = 0) -> list[str]:
    stream, ours = terminal
    resize(stream.fileno(), num_columns)
    wrapping = WrappedTerminal(stream)
    for piece in in_pieces(text, random.Random(seed)):
        wrapping.write(piece)
    return shown(stream, ours)


@pytest.mark.parametrize("seed", range(20))
def test_lines_hold_as_many_whole_words_as_fit(terminal: tuple[TextIO, int], seed: int) -> None:
    chance = random.Random(seed)
    words = chance.choices(WORDS, k=80)
    num_columns = chance.randint(17, 60)
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + 1 + len(word) > num_columns - 1:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    found = wrapped(terminal, " ".join(words), num_columns=num_columns, seed=seed)
    assert [line.rstrip() for line in found] == lines


def test_words_longer_than_a_line_and_fenced_code_are_left_to_the_terminal(terminal: tuple[TextIO, int]) -> None:
    address = "https://example.org/" + "x" * 40
    code = "    for a line that is longer than the window is: pass"
    text = f"see {address} and then more\n```python\n{code}\n```\nwhich is text once again"
    lines = wrapped(terminal, text, num_columns=21)
    assert lines[:2] == ["see ", f"{address} "]
    assert code in lines
    assert [line.rstrip() for line in lines[-2:]] == ["which is text once", "again"]


def test_wide_characters_take_two_columns_and_may_be_parted(terminal: tuple[TextIO, int]) -> None:
    lines = wrapped(terminal, "北京是中国的首都、也是最大的城市。", num_columns=13)
    assert lines == ["北京是中国的", "首都、也是最", "大的城市。"]
    lines = wrapped(terminal, "一二三四五六、七", num_columns=13)
    assert lines == ["一二三四五", "六、七"]
