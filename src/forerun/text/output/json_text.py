"""Reads JSON while it is written, and corrects common mistakes of models.

These are control characters in texts, backslashes that escape nothing, and Python's words for true, false and null.
"""

import json
import re
from collections.abc import Callable
from typing import Final

from forerun.text.output.text_source import SPACE, NotACallError, Step, TextSource

PLAIN: Final = re.compile(r'[^"\\\x00-\x1f]+')
WORD: Final = re.compile(r"[A-Za-z0-9+\-.]+")
NUMBER: Final = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
WORDS: Final = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
MAX_WORD: Final = 400  # characters; a number of float64 has at most 330 without an exponent
HEX: Final = re.compile(r"[0-9a-fA-F]*")


def read_value(source: TextSource, say: Callable[[str], None]) -> Step[None]:
    """Read one JSON value and pass its text to `say` piece by piece.

    Raises:
        NotACallError: the next characters are not JSON.
    """
    closers: list[str] = []
    wants = "value"
    while True:
        if closers:
            say((yield from source.space()))
        letter = yield from source.peek()
        if closers and letter == closers[-1] and wants in ("more", "first", "first key"):
            say(source.take(1))
            closers.pop()
            wants = "more"
        elif wants == "more" and letter == ",":
            say(source.take(1))
            wants = "key" if closers[-1] == "}" else "value"
        elif wants == "colon" and letter == ":":
            say(source.take(1))
            wants = "value"
        elif wants in ("key", "first key") and letter == '"':
            yield from read_string(source, say)
            wants = "colon"
        elif wants in ("value", "first") and letter in "{[":
            say(source.take(1))
            closers.append("}" if letter == "{" else "]")
            wants = "first key" if letter == "{" else "first"
        elif wants in ("value", "first"):
            yield from (read_string if letter == '"' else _read_word)(source, say)
            wants = "more"
        else:
            raise NotACallError
        if not closers and wants == "more":
            return


def read_string(source: TextSource, say: Callable[[str], None]) -> Step[None]:
    """Read a JSON string, which begins here, and pass its text to `say`."""
    say(source.take(1))
    while True:
        letter = yield from source.peek()
        if letter == "\\":
            say((yield from _read_escape(source)))
        elif letter == '"':
            say(source.take(1))
            return
        elif plain := PLAIN.match(source.text, source.at):
            say(source.take(len(plain.group())))
        else:
            say(json.dumps(source.take(1))[1:-1])


def _read_escape(source: TextSource) -> Step[str]:
    source.take(1)
    letter = yield from source.peek()
    if letter in '"\\/bfnrt':
        return "\\" + source.take(1)
    if letter == "u":
        while len(source.rest) < 5 and HEX.fullmatch(source.rest[1:]) and not source.is_over:
            yield
        if len(source.rest) >= 5 and HEX.fullmatch(source.rest[1:5]):
            return "\\" + source.take(5)
    return "\\\\"


def _read_word(source: TextSource, say: Callable[[str], None]) -> Step[None]:
    while True:
        found = WORD.match(source.text, source.at)
        if found is None or len(found.group()) > MAX_WORD:
            raise NotACallError
        if found.end() < len(source.text) or source.is_over:
            break
        yield
    word = found.group()
    if word not in WORDS and not NUMBER.fullmatch(word):
        raise NotACallError
    source.take(len(word))
    say(WORDS.get(word, word))


def collect(source: TextSource) -> Step[str]:
    """Read one JSON value and return its text."""
    pieces: list[str] = []
    yield from read_value(source, pieces.append)
    return "".join(pieces)


def as_object_text(text: str) -> str:
    """The text if it holds a JSON object; "{}" for texts that mean no arguments.

    Raises:
        NotACallError: it holds something else.
    """
    if text.strip(SPACE) in ("", "null", '""'):
        return "{}"
    try:
        value = json.loads(text)
        if isinstance(value, str):
            return as_object_text(value)
    except (ValueError, RecursionError):
        raise NotACallError from None
    if not isinstance(value, dict):
        raise NotACallError
    return text.strip(SPACE)
