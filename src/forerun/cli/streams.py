"""Input bytes from terminals, pipes and arguments, and streams that are closed or full."""

import codecs
import errno
import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TextIO

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
HANDLER: Final = "forerun.replace"
NO_BYTE: Final = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # surrogates that do not stand for a raw byte
RESET: Final = "\x1b[0m"  # ends all colours and styles
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


class Undecodable:
    """Replaces bytes that are not UTF-8, and prints one message about them."""

    def __init__(self) -> None:
        self.was_told = False

    def __call__(self, error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeDecodeError), f"only errors of decoding are handled, not {error}"
        if not self.was_told:
            self.was_told = True
            print(
                f"forerun: the input is not valid UTF-8: bytes such as 0x{error.object[error.start]:02x} are replaced "
                f"by {REPLACEMENT!r}",
                file=sys.stderr,
            )
        return REPLACEMENT, error.end


undecodable: Final = Undecodable()


def prepare_streams() -> None:
    """Read UTF-8, replace what cannot be read or shown, and open the null device in place of closed streams."""
    codecs.register_error(HANDLER, undecodable)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123 - open to the end
        elif isinstance(stream, io.TextIOWrapper) and mode == "r":
            stream.reconfigure(encoding="utf-8", errors=HANDLER)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def takes_colours(name: str) -> bool:
    """Whether this stream is a terminal that supports ANSI escape codes."""
    return bool(getattr(sys, name).isatty()) and os.environ.get("TERM") != "dumb"


def printable(text: str) -> str:
    """The text without control characters, which would reach the terminal."""
    return "".join([character if character.isprintable() else "·" for character in text])


def decoded(text: bytes) -> str:
    """The bytes as text; invalid bytes are replaced, with one message."""
    codecs.register_error(HANDLER, undecodable)
    return text.decode("utf-8", HANDLER)


def cleaned(value: Any) -> Any:
    """Text of the command line without the surrogates that stand for raw bytes; other values are unchanged."""
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    if type(value) is not str or value.isascii():
        return value
    return decoded(NO_BYTE.sub(REPLACEMENT, value).encode("utf-8", "surrogateescape"))


def is_full(error: OSError) -> bool:
    """Whether the error means that a stream takes no more output, such as on a full disk."""
    return error.errno in NO_ROOM and error.filename is None


def let_go(stream: TextIO) -> None:
    """Discard the unwritten output of a stream, so that the exit does not fail on it again."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def unechoed() -> Iterator[None]:
    """Turn echo off, so that typed text does not appear within the answer; the next line that is read contains it."""
    is_wanted = sys.stdin.isatty() and sys.stdout.isatty()
    if sys.platform == "win32" or not is_wanted or _is_in_background():
        yield
        return
    import termios

    before = termios.tcgetattr(0)
    termios.tcsetattr(0, termios.TCSANOW, [*before[:3], before[3] & ~termios.ECHO, *before[4:]])
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSANOW, before)


def _is_in_background() -> bool:
    """Whether this is a background job, which would be stopped if it changed its terminal's settings."""
    try:
        return os.tcgetpgrp(0) != os.getpgrp()
    except OSError:  # the terminal does not control jobs
        return False
