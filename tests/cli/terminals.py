"""Pseudo-terminals: commands that run on one, and what its screen shows."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from forerun.cli.wrap import width_of
from tests.cli.conftest import command, environment

CODE: Final = re.compile(r"\x1b\[[?]?(\d*)([A-Za-z])|.", re.DOTALL)
PATIENCE_S: Final = 120  # for one answer on a busy machine
OnTerminal = tuple[subprocess.Popen[bytes], Callable[[bytes], None], Callable[[bytes], bytes]]


def resize(terminal: int, num_columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, num_columns, 0, 0))


@contextmanager
def running(*arguments: str, num_columns: int = 0) -> Iterator[OnTerminal]:
    """A command on a terminal: the process, what types, and what reads up to some text."""
    ours, theirs = pty.openpty()
    resize(theirs, num_columns)
    pipes = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    with subprocess.Popen(command(*arguments), env=environment(TERM="xterm"), **pipes) as process:  # type: ignore[call-overload]
        os.close(theirs)
        try:
            unread = bytearray()
            yield process, lambda typed: os.write(ours, typed) and None, lambda wanted: read_until(ours, unread, wanted)
        finally:
            process.kill()
    os.close(ours)


def read_until(terminal: int, unread: bytearray, wanted: bytes) -> bytes:
    """What comes up to and with this text; what came behind it stays in `unread`."""
    while wanted not in unread:
        assert select.select([terminal], [], [], PATIENCE_S)[0], f"{wanted!r} does not come after {bytes(unread)!r}"
        piece = os.read(terminal, 4096)
        assert piece, f"the process ended after {bytes(unread)!r}"
        unread += piece
    end = unread.index(wanted) + len(wanted)
    found = bytes(unread[:end])
    del unread[:end]
    return found


def lines_of(written: str) -> list[str]:
    """The lines of a screen without a right edge."""
    lines = [""]
    column = 0
    for found in CODE.finditer(written.replace("\r", "")):
        piece = found[0]
        if piece == "\n":
            lines.append("")
            column = 0
        elif found[2] == "D":
            column -= int(found[1])
        elif found[2] == "K":
            lines[-1] = _cut(lines[-1], column)
        elif found[2] is None:
            lines[-1] += piece
            column += width_of(piece)
    return lines


def _cut(line: str, num_columns: int) -> str:
    """The beginning of a line that takes so many columns."""
    kept = ""
    while line and sum(map(width_of, kept + line[0])) <= num_columns:
        kept = kept + line[0]
        line = line[1:]
    return kept
