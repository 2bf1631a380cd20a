"""Reads calls whose arguments stand between marks, one by one, and writes them as JSON."""

import ast
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from forerun.text.output.call_readers import MAX_NAME, CallSink, known_name
from forerun.text.output.call_schema import is_text, properties_of
from forerun.text.output.json_text import read_value
from forerun.text.output.text_source import SPACE, NotACallError, Step, TextSource
from forerun.text.output.traits import CallFormat

WORDS: Final = {"true": True, "false": False, "null": None, "none": None}


def read_tagged_call(source: TextSource, sink: CallSink, format: CallFormat) -> Step[None]:
    """Read the name, then each argument, typed by the tool's schema."""
    yield from source.expect(format.name_begin)
    begin, name_end = format.parameter_begin.strip(), format.name_end.strip()
    done = format.arguments_end.strip() or format.call_end.strip()
    stops = [name_end] if name_end else [begin, done, "\n"]
    name = known_name(sink, (yield from source.before(stops, MAX_NAME)))
    yield from source.expect(name_end)
    yield from source.space()
    if (yield from source.peek()) == "{":
        sink.start(name)
        yield from read_value(source, sink.arguments)
        yield from source.optional(done)
        sink.end()
        return
    properties = properties_of(sink.schemas[name])
    joint = "{"
    while (mark := (yield from source.optional(begin, format.parameter_end.strip(), done))) != done:
        if mark == begin:
            key = yield from source.before(format.parameter_name_end.split()[:1], MAX_NAME)
            yield from source.expect(format.parameter_name_end)
            if joint == "{":
                sink.start(name)
            sink.arguments(f"{joint}{json.dumps(key.strip(), ensure_ascii=False)}: ")
            joint = ", "
            yield from _read_argument(source, sink, format, properties.get(key.strip(), {}))
        elif not mark:
            raise NotACallError
    if joint == "{":
        sink.start(name)
    sink.arguments("{}" if joint == "{" else "}")
    sink.end()


def _read_argument(source: TextSource, sink: CallSink, format: CallFormat, schema: Mapping[str, Any]) -> Step[None]:
    if format.parameter_name_end.endswith("\n") and (yield from source.peek()) == "\n":
        source.take(1)
    if is_text(schema):
        sink.arguments('"')
        yield from _read_raw(source, format, lambda text: sink.arguments(json.dumps(text, ensure_ascii=False)[1:-1]))
        sink.arguments('"')
    else:
        pieces: list[str] = []
        yield from _read_raw(source, format, pieces.append)
        sink.arguments(typed("".join(pieces), schema))


def _read_raw(source: TextSource, format: CallFormat, say: Callable[[str], None]) -> Step[None]:
    """Read a value up to its end mark, one line break before it left out.

    An end mark counts only where another argument or the call's end follows; otherwise it is part of the value.
    """
    end = format.parameter_end.strip()
    spaced = format.parameter_end[0]  # the line break before the mark, where the format has one
    following = (format.parameter_begin.strip(), format.arguments_end.strip(), format.call_end.strip(), end)
    nexts = tuple(filter(None, following))
    while True:
        rest = source.rest
        place = min((place for mark in (spaced, end[0]) if (place := rest.find(mark)) >= 0), default=len(rest))
        say(source.take(place))
        rest = rest[place:]
        num = _num_of_end(rest, spaced + end if spaced != end[0] else end, end, nexts)
        if num == 0:
            say(source.take(1))
        elif num is not None:
            source.take(num)
            return
        elif source.is_over:
            say(source.take(len(rest)))
            raise NotACallError
        else:
            yield


def _num_of_end(text: str, spaced: str, end: str, nexts: tuple[str, ...]) -> int | None:
    """Length of the end mark, if the text begins with it; 0 if it does not, None if that is not certain yet."""
    for mark in (spaced, end):
        if mark.startswith(text):
            return None
        if text.startswith(mark):
            rest = text[len(mark) :].lstrip(SPACE)
            if rest.startswith(nexts):
                return len(mark)
            return None if any(following.startswith(rest) for following in nexts) else 0
    return 0


def typed(text: str, schema: Mapping[str, Any]) -> str:
    """JSON for a value that a model wrote without marks around texts: the value if it can be read, else a text."""
    plain = text.strip(SPACE)
    if plain.lower() in WORDS:
        return json.dumps(WORDS[plain.lower()])
    try:
        json.loads(plain, parse_constant=_refuse)
        return plain  # JSON that is left as it is, such as a number outside float64's range
    except (ValueError, RecursionError):
        pass
    try:
        return json.dumps(ast.literal_eval(plain), ensure_ascii=False, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return json.dumps(text, ensure_ascii=False)


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")
