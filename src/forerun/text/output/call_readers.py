"""Readers of calls in JSON: an object with name and arguments, or a name and then its arguments."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from forerun.text.output.json_text import as_object_text, collect, read_string, read_value
from forerun.text.output.text_source import NotACallError, Step, TextSource
from forerun.text.output.traits import CallFormat

MAX_NAME: Final = 256  # characters, including those that some models put around a name
AROUND_NAME: Final = tuple(
    map(re.compile, (r"(.+):\d+", r"(.+?)\[CALL_ID\].*", r"functions\.(.+)", r"functions\.(.+):\d+"))
)  # what models write before and behind a name
NUMBER_OF_CALL: Final = re.compile(r":\d+\s*$")
OTHER_KEYS: Final = ("id", "type", "tool_call_id")  # allowed besides name and arguments


class CallSink(Protocol):
    """Receives the parts of a call."""

    schemas: Mapping[str, Mapping[str, Any]]  # of the arguments of each tool, by its name
    is_open: bool  # whether a call has begun and not ended

    def start(self, name: str) -> None:
        """A call begins; from here on it counts as a call, whatever follows."""

    def arguments(self, text: str) -> None:
        """A piece of its arguments."""

    def end(self) -> None:
        """The call is complete."""


def whole_call(sink: CallSink, name: str, arguments: str) -> None:
    """Report a whole call to the sink."""
    sink.start(name)
    sink.arguments(arguments)
    sink.end()


def known_name(sink: CallSink, text: str) -> str:
    """The name of the tool that this text names.

    Raises:
        NotACallError: no tool has this name.
    """
    name = text.strip()
    if name in sink.schemas:
        return name
    for pattern in AROUND_NAME:
        if (found := pattern.fullmatch(name)) and found.group(1) in sink.schemas:
            return found.group(1)
    raise NotACallError


def read_name(source: TextSource, sink: CallSink, ends: Sequence[str]) -> Step[str]:
    """Read a tool's name up to one of these texts, which is not read.

    Raises:
        NotACallError: no tool has this name.
    """
    name = yield from source.known([*sink.schemas], ends)
    return known_name(sink, (yield from source.before(ends, MAX_NAME))) if name is None else name


def read_json_calls(source: TextSource, sink: CallSink, format: CallFormat) -> Step[None]:
    """Read an object, or several: in a list, or with `;` or `,` between."""
    is_list = (yield from source.optional("[")) != ""
    while True:
        yield from source.space()
        yield from read_call_object(source, sink, format)
        if is_list and (yield from source.optional("]")):
            break
        if not (yield from source.optional(",", ";")):
            if is_list:
                raise NotACallError
            break


def read_call_object(source: TextSource, sink: CallSink, format: CallFormat) -> Step[None]:
    """Read {"name": "f", "arguments": {..}}; keys in any order, and the arguments perhaps as text."""
    name = ""
    arguments = ""
    yield from source.expect("{")
    while True:
        yield from source.space()
        key = yield from read_text(source)
        yield from source.expect(":")
        yield from source.space()
        if key in (format.name_key, "name") and not name:
            name = known_name(sink, (yield from read_text(source)))
        elif key in (format.arguments_key, "arguments", "parameters") and not arguments and not sink.is_open:
            if name and (yield from source.peek()) == "{":
                sink.start(name)
                yield from read_value(source, sink.arguments)
            else:
                arguments = as_object_text((yield from collect(source)))
        elif key in OTHER_KEYS:
            yield from collect(source)
        else:
            raise NotACallError
        if not (yield from source.optional(",")):
            break
    yield from source.expect("}")
    if sink.is_open:
        sink.end()
    elif name:
        whole_call(sink, name, arguments or "{}")
    else:
        raise NotACallError


def read_named_call(source: TextSource, sink: CallSink, format: CallFormat) -> Step[None]:
    """Read a name and then the arguments as JSON."""
    if format.name_begin:
        yield from source.optional(format.name_begin.strip())
    if not format.first_mark:
        yield from _expect_name(source, sink)
    end = format.name_end.split()[0] if format.name_end.strip() else "\n"
    if format.is_numbered:
        name = known_name(sink, NUMBER_OF_CALL.sub("", (yield from source.before([end], MAX_NAME))))
    else:
        name = yield from read_name(source, sink, [end])
    yield from source.expect(format.name_end)
    yield from source.space()
    if (yield from source.peek()) != "{":
        yield from source.expect(format.call_end)
        whole_call(sink, name, "{}")
        return
    sink.start(name)
    yield from read_value(source, sink.arguments)
    sink.end()


def _expect_name(source: TextSource, sink: CallSink) -> Step[None]:
    """Check early that a tool's name comes next, because no mark stands before it."""
    yield from source.space()
    names = tuple(sink.schemas)
    while not source.rest.startswith(names):
        if not any(name.startswith(source.rest) for name in names):
            raise NotACallError
        yield from source.more()


def read_section(
    source: TextSource,
    format: CallFormat,
    read_call: Callable[[], Step[None]],
    ends: Sequence[str],
    *,
    expects_begin: bool,
) -> Step[None]:
    """Read calls with marks around each, and perhaps around all; the first mark was read already.

    Args:
        ends: texts that may follow a call; they may also be missing.
        expects_begin: whether the first call's own mark was not read yet.
    """
    call_begin = format.call_begin.strip()
    section_end = format.section_end.strip()
    if expects_begin and format.section_begin.strip():
        yield from source.expect(call_begin)
    while True:
        yield from read_call()
        yield from source.optional(*ends)
        source.settle()
        if not (yield from source.optional(*filter(None, (section_end, call_begin)))):
            break
        if not call_begin or source.text[source.at - len(call_begin) : source.at] != call_begin:
            break
    if source.is_over and any(mark.startswith(source.rest) for mark in (*ends, section_end)):
        source.take(len(source.rest))  # an incomplete mark


def read_text(source: TextSource) -> Step[str]:
    """Read a JSON string and return its text."""
    if (yield from source.peek()) != '"':
        raise NotACallError
    pieces: list[str] = []
    yield from read_string(source, pieces.append)
    return str(json.loads("".join(pieces)))
