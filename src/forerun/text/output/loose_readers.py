"""Readers of calls that are written as in Python, f(a=1), or as in Gemma 4, call:f{a:1}; nothing is evaluated."""

import json
import re
from typing import Any, Final

from forerun.text.output.call_readers import MAX_NAME, CallSink, known_name, whole_call
from forerun.text.output.json_text import NUMBER
from forerun.text.output.text_source import NotACallError, Step, TextSource
from forerun.text.output.traits import CallFormat

MAX_DEPTH: Final = 64  # of nested lists and mappings
MAX_TEXT: Final = 2**20  # characters
WORD: Final = re.compile(r"[\w.+-]+")
WORDS: Final = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
LEADING_ZEROS: Final = re.compile(r"^0+(?=\d)|(?<=^-)0+(?=\d)")
PLAIN: Final = {quote: re.compile(rf"[^\\{quote}]+") for quote in "\"'"}
ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\n": ""}


def read_pythonic_calls(source: TextSource, sink: CallSink, _: CallFormat) -> Step[None]:
    """Read calls in a list, or one after the other."""
    is_list = (yield from source.optional("[")) != ""
    while True:
        yield from source.space()
        name = known_name(sink, (yield from _word(source)).removesuffix(".call"))
        yield from source.expect("(")
        whole_call(sink, name, to_json((yield from _entries(source, joint="=", closer=")", quote="", depth=0))))
        if is_list and (yield from source.optional("]")):
            return
        if not (yield from source.optional(",", ";")):
            if is_list:
                raise NotACallError
            yield from source.space()
            if not WORD.match(source.rest):
                return


def read_gemma_call(source: TextSource, sink: CallSink, format: CallFormat) -> Step[None]:
    """Read one call, whose keys are bare and whose texts stand between marks."""
    yield from source.expect(format.name_begin)
    name = known_name(sink, (yield from source.before(["{"], MAX_NAME)))
    yield from source.expect("{")
    quote = format.string_mark
    whole_call(sink, name, to_json((yield from _entries(source, joint=":", closer="}", quote=quote, depth=0))))


def to_json(value: object) -> str:
    """The value as JSON.

    Raises:
        NotACallError: it holds an infinite number.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise NotACallError from None


def _entries(source: TextSource, *, joint: str, closer: str, quote: str, depth: int) -> Step[dict[str, Any]]:
    """Read names and values up to the closing character."""
    entries: dict[str, Any] = {}
    while not (yield from source.optional(closer)):
        if entries:
            yield from source.expect(",")
            if (yield from source.optional(closer)):
                break
        is_bare = (yield from source.peek()) not in "\"'" and not (quote and (yield from source.which([quote])))
        key = yield from (_word(source) if is_bare else _value(source, quote, depth))
        yield from source.expect(joint)
        entries[str(key)] = yield from _value(source, quote, depth + 1)
    return entries


def _value(source: TextSource, quote: str, depth: int) -> Step[Any]:
    if depth > MAX_DEPTH:
        raise NotACallError
    yield from source.space()
    if quote and (yield from source.which([quote])):
        source.take(len(quote))
        text = yield from source.before([quote], MAX_TEXT)
        source.take(len(quote))
        return text
    letter = yield from source.peek()
    if letter in "\"'":
        return (yield from _quoted(source))
    if letter == "{":
        source.take(1)
        return (yield from _entries(source, joint=":", closer="}", quote=quote, depth=depth))
    if letter in "[(":
        source.take(1)
        return (yield from _items(source, closer="]" if letter == "[" else ")", quote=quote, depth=depth))
    return _meant((yield from _word(source)))


def _items(source: TextSource, *, closer: str, quote: str, depth: int) -> Step[list[Any]]:
    items: list[Any] = []
    while not (yield from source.optional(closer)):
        if items:
            yield from source.expect(",")
            if (yield from source.optional(closer)):
                break
        items.append((yield from _value(source, quote, depth + 1)))
    return items


def _word(source: TextSource) -> Step[str]:
    """Read a name or a number."""
    while True:
        found = WORD.match(source.text, source.at)
        if found is not None and len(found.group()) > MAX_NAME:
            raise NotACallError
        if source.at < len(source.text) and (found is None or found.end() < len(source.text) or source.is_over):
            break
        yield from source.more()
    if found is None:
        raise NotACallError
    return source.take(len(found.group()))


def _meant(word: str) -> object:
    """The value of a word without quotes; numbers may begin with zeros, as in month=07."""
    if word in WORDS:
        return WORDS[word]
    number = LEADING_ZEROS.sub("", word)
    if not NUMBER.fullmatch(number):
        raise NotACallError
    return json.loads(number)


def _quoted(source: TextSource) -> Step[str]:
    """Read a text in quotes, with Python's escapes."""
    quote = source.take(1)
    pieces: list[str] = []
    while (letter := (yield from source.peek())) != quote:
        if plain := PLAIN[quote].match(source.text, source.at):
            pieces.append(source.take(len(plain.group())))
        else:
            source.take(1)
            yield from source.peek()
            pieces.append(letter + source.take(1))
    source.take(1)
    return ESCAPE.sub(_unescaped, "".join(pieces))


def _unescaped(found: re.Match[str]) -> str:
    said = found.group(1)
    if len(said) > 1:
        return chr(int(said[1:], 16))
    return ESCAPES.get(said, said if said in "\\'\"" else found.group())
