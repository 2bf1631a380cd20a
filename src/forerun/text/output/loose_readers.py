"""Readers of calls that are written as in Python, f(a=1), or as in Gemma 4, call:f{a:1}; nothing is evaluated."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from forerun.text.output.call_readers import CallSink, known_name, read_name, whole_call
from forerun.text.output.call_schema import keys_of
from forerun.text.output.json_text import MAX_DEPTH, MAX_WORD, meaning, whole_characters
from forerun.text.output.text_source import NotACallError, Step, TextSource, read_whole
from forerun.text.output.traits import CallFormat

MAX_TEXT: Final = 2**20  # characters
WORD: Final = re.compile(r"[\w.+-]+")
LEADING_ZEROS: Final = re.compile(r"^0+(?=\d)|(?<=^-)0+(?=\d)")
PLAIN: Final = {quote: re.compile(rf"[^\\{quote}]+") for quote in "\"'"}
ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\n": "", "/": "/"}
MOST_CHARACTER: Final = 0x10FFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How values are written.

    Args:
        keys: names of arguments that may stand without quotes, whatever characters they have.
        quote: the mark around texts in Gemma's form.
        is_strict: other names stand in quotes, and numbers are JSON's; otherwise they may begin with zeros, as in
            month=07.
    """

    keys: Sequence[str] = ()
    quote: str = ""
    is_strict: bool = False


def read_pythonic_calls(source: TextSource, sink: CallSink, _: CallFormat) -> Step[None]:
    """Read calls in a list, or one after the other."""
    is_list = (yield from source.optional("[")) != ""
    names = tuple(sink.schemas)
    while True:
        yield from source.space()
        name = yield from source.known(names, ["("])
        if name is None:
            name = known_name(sink, (yield from _word(source)).removesuffix(".call"))
        yield from source.expect("(")
        style = Style(keys=keys_of(sink.schemas[name]))
        whole_call(sink, name, to_json((yield from _entries(source, style, joint="=", closer=")", depth=0))))
        if is_list and (yield from source.optional("]")):
            return
        if not (yield from source.optional(",", ";")):
            if is_list:
                raise NotACallError
            yield from source.space()
            if not WORD.match(source.rest) and not (yield from source.which(names)):
                return


def read_gemma_call(source: TextSource, sink: CallSink, format: CallFormat) -> Step[None]:
    """Read one call, whose keys are bare and whose texts stand between marks."""
    yield from source.expect(format.name_begin)
    name = yield from read_name(source, sink, ["{"])
    yield from source.expect("{")
    style = Style(keys=keys_of(sink.schemas[name]), quote=format.string_mark)
    whole_call(sink, name, to_json((yield from _entries(source, style, joint=":", closer="}", depth=0))))


def python_value(text: str) -> str:
    """JSON for a value that is written as Python writes it: True, None, and texts in any quotes.

    Raises:
        NotACallError: it is something else.
    """
    return to_json(read_whole(text, lambda source: _value(source, Style(is_strict=True), depth=0)))


def to_json(value: object) -> str:
    """The value as JSON."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _entries(source: TextSource, style: Style, *, joint: str, closer: str, depth: int) -> Step[dict[str, Any]]:
    """Read names and values up to the closing character."""
    entries: dict[str, Any] = {}
    while True:
        yield from source.space()
        key = yield from source.known(style.keys, [joint])
        if key is None:
            if (yield from source.optional(closer)):
                return entries
            key = str((yield from _key(source, style, depth)))
        yield from source.expect(joint)
        entries[key] = yield from _value(source, style, depth + 1)
        if not (yield from source.optional(",")):
            yield from source.expect(closer)
            return entries


def _key(source: TextSource, style: Style, depth: int) -> Step[Any]:
    is_quoted = (yield from source.peek()) in "\"'" or bool(style.quote and (yield from source.which([style.quote])))
    if not is_quoted and style.is_strict:
        raise NotACallError
    return (yield from (_value(source, style, depth) if is_quoted else _word(source)))


def _value(source: TextSource, style: Style, depth: int) -> Step[Any]:
    yield from source.space()
    if style.quote and (yield from source.which([style.quote])):
        source.take(len(style.quote))
        text = yield from source.before([style.quote], MAX_TEXT)
        source.take(len(style.quote))
        return text
    letter = yield from source.peek()
    if letter in "\"'":
        return (yield from _quoted(source))
    if letter in "{[(" and depth == MAX_DEPTH:
        raise NotACallError
    if letter == "{":
        source.take(1)
        return (yield from _entries(source, style, joint=":", closer="}", depth=depth))
    if letter in "[(":
        source.take(1)
        return (yield from _items(source, style, closer="]" if letter == "[" else ")", depth=depth))
    return _meant((yield from _word(source)), style)


def _items(source: TextSource, style: Style, *, closer: str, depth: int) -> Step[list[Any]]:
    items: list[Any] = []
    while not (yield from source.optional(closer)):
        if items:
            yield from source.expect(",")
            if (yield from source.optional(closer)):
                break
        items.append((yield from _value(source, style, depth + 1)))
    return items


def _word(source: TextSource) -> Step[str]:
    """Read a name or a number."""
    while True:
        found = WORD.match(source.text, source.at)
        if found is not None and len(found.group()) > MAX_WORD:
            raise NotACallError
        if source.at < len(source.text) and (found is None or found.end() < len(source.text) or source.is_over):
            break
        yield from source.more()
    if found is None:
        raise NotACallError
    return source.take(len(found.group()))


def _meant(word: str, style: Style) -> object:
    """The value of a word without quotes."""
    said = meaning(word if style.is_strict else LEADING_ZEROS.sub("", word))
    if said is None:
        raise NotACallError
    return json.loads(said)


def _quoted(source: TextSource) -> Step[str]:
    """Read a text in quotes, with the escapes of Python and of JSON."""
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
    return whole_characters(ESCAPE.sub(_unescaped, "".join(pieces)))


def _unescaped(found: re.Match[str]) -> str:
    said = found.group(1)
    if len(said) > 1:
        code = int(said[1:], 16)
        return chr(code) if code <= MOST_CHARACTER else "\ufffd"
    return ESCAPES.get(said, said if said in "\\'\"" else found.group())
