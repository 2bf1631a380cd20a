"""Reads JSON while it is written, and corrects common mistakes of models, so that every parser can read the result.

These are control characters in texts, backslashes that escape nothing, halves of surrogate pairs, Python's words for
true, false and null, and numbers that JSON or float64 does not have, which become texts.
"""

import json
import re
from collections.abc import Callable
from math import isfinite
from typing import Any, Final

from forerun.text.output.text_source import SPACE, NotACallError, Step, TextSource, read_whole

MAX_DEPTH: Final = 64  # of nested lists and objects; parsers of clients have limits, too

PLAIN: Final = re.compile(r'[^"\\\x00-\x1f]+')
WORD: Final = re.compile(r"[A-Za-z0-9+\-.]+")
NUMBER: Final = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
WORDS: Final = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
NO_NUMBERS: Final = ("NaN", "Infinity", "-Infinity")
MAX_WORD: Final = 400  # characters; a number of float64 has at most 330 without an exponent
HALF: Final = re.compile("[\ud800-\udfff]")
HEX: Final = re.compile(r"[0-9a-fA-F]*")


def read_value(source: TextSource, say: Callable[[str], None]) -> Step[None]:
    """Read one JSON value and pass its text to `say` piece by piece.

    Raises:
        NotACallError: the next characters are not JSON, or nest too deep.
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
            if len(closers) == MAX_DEPTH:
                raise NotACallError
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
    code = yield from _code(source, "u")
    if not code:
        return "\\\\"
    source.take(5)
    if not "d8" <= code[:2] <= "df":
        return f"\\u{code}"
    if code < "dc" and "dc" <= (low := (yield from _code(source, "\\u"))) < "e0":
        source.take(6)
        return f"\\u{code}\\u{low}"
    return "\\ufffd"  # half of a pair is no character


def _code(source: TextSource, begin: str) -> Step[str]:
    """The four digits of an escape that begins so and comes next, which is not read; "" if none comes next."""
    num = len(begin) + 4
    while True:
        text = source.text[source.at : source.at + num]
        is_one = begin.startswith(text) or (text.startswith(begin) and HEX.fullmatch(text[len(begin) :]) is not None)
        if not is_one or len(text) == num or source.is_over:
            return text[len(begin) :].lower() if is_one and len(text) == num else ""
        yield


def _read_word(source: TextSource, say: Callable[[str], None]) -> Step[None]:
    while True:
        found = WORD.match(source.text, source.at)
        if found is None or len(found.group()) > MAX_WORD:
            raise NotACallError
        if found.end() < len(source.text) or source.is_over:
            break
        yield
    said = meaning(found.group())
    if said is None:
        raise NotACallError
    source.take(len(found.group()))
    say(said)


def meaning(word: str) -> str | None:
    """JSON for a word without quotes; None if it means nothing."""
    if word in WORDS:
        return WORDS[word]
    is_number = NUMBER.fullmatch(word) is not None
    if word in NO_NUMBERS or (is_number and not isfinite(float(word))):
        return json.dumps(word)
    return word if is_number else None


def whole_characters(text: str) -> str:
    """The text with halves of surrogate pairs joined, and replaced where they stand alone."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if HALF.search(text) else text


def collect(source: TextSource) -> Step[str]:
    """Read one JSON value and return its text."""
    pieces: list[str] = []
    yield from read_value(source, pieces.append)
    return "".join(pieces)


def json_of(text: str) -> str:
    """The JSON value that a text of a model holds, corrected.

    Raises:
        NotACallError: it holds something else.
    """
    return read_whole(text.strip(SPACE), collect)


def object_of(text: str) -> dict[str, Any] | None:
    """The object that a text of a model holds; None if it holds something else."""
    try:
        value = json.loads(json_of(text))
    except NotACallError:
        return None
    return value if isinstance(value, dict) else None


def as_object_text(text: str) -> str:
    """The text, corrected, if it holds a JSON object; "{}" for texts that mean no arguments.

    Raises:
        NotACallError: it holds something else.
    """
    if text.strip(SPACE) in ("", "null", '""'):
        return "{}"
    found = json_of(text)
    if found.startswith('"'):
        return as_object_text(json.loads(found))
    if not found.startswith("{"):
        raise NotACallError
    return found
