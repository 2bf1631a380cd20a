"""Reads calls whose arguments stand between marks, one by one, and writes them as JSON."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from forerun.text.output.call_readers import CallSink, read_name
from forerun.text.output.call_schema import (
    Schema,
    alternatives_of,
    is_text,
    kind_of,
    listed_texts,
    properties_of,
    takes,
    takes_texts,
)
from forerun.text.output.json_text import json_of, read_value
from forerun.text.output.loose_readers import python_value
from forerun.text.output.text_source import SPACE, NotACallError, Step, TextSource, num_matched
from forerun.text.output.traits import CallFormat

WORDS: Final = {"true": True, "false": False, "null": None, "none": None}
PYTHON_WORDS: Final = ("True", "False", "None")
MAX_KEY: Final = 256  # characters of an argument's name that the tool does not have
NOTHING: Final[Schema] = {}


def read_tagged_call(source: TextSource, sink: CallSink, format: CallFormat) -> Step[None]:
    """Read the name, then each argument, typed by the tool's schema."""
    yield from source.expect(format.name_begin)
    marks = TaggedMarks.of(format)
    name_end = format.name_end.strip()
    done = (*marks.closing, "")[0]
    name = yield from read_name(source, sink, [name_end] if name_end else [marks.begin, done, "\n", "{"])
    yield from source.expect(name_end)
    yield from source.space()
    if (yield from source.peek()) == "{":
        sink.start(name)
        yield from read_value(source, sink.arguments)
        yield from source.optional(done)
        sink.end()
        return
    schema = sink.schemas[name]
    properties = properties_of(schema)
    left = list(properties)  # the names of arguments that were not given yet
    joint = "{"
    while (mark := (yield from source.optional(marks.begin, marks.end, done))) != done:
        if mark == marks.begin:
            key = yield from _read_key(source, [*properties], marks)
            if joint == "{":
                sink.start(name)
            sink.arguments(f"{joint}{json.dumps(key, ensure_ascii=False)}: ")
            joint = ", "
            left = [other for other in left if other != key]
            yield from _read_argument(source, sink, format, left, properties.get(key, {}), schema)
        elif not mark:
            raise NotACallError
    if joint == "{":
        sink.start(name)
    sink.arguments("{}" if joint == "{" else "}")
    sink.end()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedMarks:
    """The marks of tagged calls without white space, which may differ.

    Args:
        begin, name_end, end: around an argument's name and its value. The end of the name may have several marks.
        closing: after the last argument.
        is_spaced: a line break before the end mark does not belong to the value.
        is_lined: every argument begins on a line of its own.
    """

    begin: str
    name_end: tuple[str, ...]
    end: str
    closing: tuple[str, ...]
    is_spaced: bool
    is_lined: bool

    @classmethod
    def of(cls, format: CallFormat) -> "TaggedMarks":
        """The marks of a format."""
        name_end = tuple(format.parameter_name_end.split())
        is_spaced = format.parameter_end.startswith("\n")
        return cls(
            begin=format.parameter_begin.strip(),
            name_end=name_end,
            end=format.parameter_end.strip(),
            closing=tuple(filter(None, (format.arguments_end.strip(), format.call_end.strip()))),
            is_spaced=is_spaced,
            # Two marks around a name are hardly a part of a value, wherever they stand.
            is_lined=len(name_end) == 1 and (is_spaced or format.parameter_begin.startswith("\n")),
        )


def _read_key(source: TextSource, names: list[str], marks: TaggedMarks) -> Step[str]:
    """Read an argument's name and the marks after it."""
    key = yield from source.known(names, marks.name_end[:1])
    if key is None:
        key = (yield from source.before(marks.name_end[:1], MAX_KEY)).strip()
        if not key or "\n" in key or "<" in key:
            raise NotACallError
    yield from source.expect(" ".join(marks.name_end))
    return key


class Ending(NamedTuple):
    """What a place in a value is.

    Args:
        kind: "end": the value ends here. "weak": it ends here unless it ends surely later. "none": the value goes on.
            "open": that depends on text to come.
        num: the length of what ends the value here.
    """

    kind: Literal["end", "weak", "none", "open"]
    num: int = 0


def ending_of(text: str, marks: TaggedMarks, left: list[str], *, is_over: bool) -> Ending:
    """What the place is where this text begins.

    A value ends at its end mark if another argument or all that closes the call follows, since a value may hold end
    marks, too. If only a part of what closes the call follows, the end is weak. Without an end mark a value ends where
    another argument of the tool begins that was not given yet.
    """
    num_line = 1 if text.startswith("\n") else 0
    text = text[num_line:]
    nums = list[int | None]()
    if marks.is_spaced or not num_line:
        num = num_matched(text, [marks.end], is_over=is_over)
        nums.append(num)
        if num:
            more_ends = re.compile(rf"([{SPACE}]*{re.escape(marks.end)})*[{SPACE}]*").match(text, num)
            rest = text[more_ends.end() if more_ends else num :]
            follows = [[marks.end], [marks.begin], marks.closing or [""]]
            nums = [num_matched(rest, follow, is_over=is_over) for follow in follows]
            if any(nums) or not marks.closing:
                return Ending("end", num_line + num)
            if None not in nums and num_matched(rest, marks.closing[:1], is_over=is_over):
                return Ending("weak", num_line + num)
    if num_line or not marks.is_lined:
        for key in left:
            num = num_matched(text, [marks.begin, key.strip(), *marks.name_end], is_over=is_over)
            if num:
                return Ending("end", num_line)
            nums.append(num)
    return Ending("open" if None in nums else "none")


def _read_argument(
    source: TextSource, sink: CallSink, format: CallFormat, left: list[str], schema: Schema, whole: Schema
) -> Step[None]:
    if is_text(schema, whole):
        sink.arguments('"')
        yield from _read_raw(
            source, format, left, lambda text: sink.arguments(json.dumps(text, ensure_ascii=False)[1:-1])
        )
        sink.arguments('"')
    else:
        pieces: list[str] = []
        yield from _read_raw(source, format, left, pieces.append)
        sink.arguments(typed("".join(pieces), schema, whole))


def _read_raw(source: TextSource, format: CallFormat, left: list[str], say: Callable[[str], None]) -> Step[None]:
    """Read a value up to its end, without the line breaks that the format has around it."""
    marks = TaggedMarks.of(format)
    may_drop_line = format.parameter_name_end.endswith("\n")
    starts = re.compile(f"[\n{re.escape(marks.end[0] + marks.begin[0])}]")
    num_weak = 0  # the length of a weak end that the rest begins with; 0: of none
    at = 0  # of the rest, up to where it was looked at
    while True:
        found = starts.search(source.rest, at)
        at = found.start() if found else len(source.rest)
        if not num_weak:
            may_drop_line = may_drop_line and at == 0
            say(source.take(at))
            at = 0
        if found is None:
            if source.is_over and not num_weak:
                raise NotACallError
            if source.is_over:
                break
            yield
            continue
        ending = ending_of(source.rest[at:], marks, left, is_over=source.is_over)
        if ending.kind == "end":
            say(source.take(at))
            source.take(ending.num)
            return
        if ending.kind == "open":
            yield
        elif ending.kind == "weak" and not num_weak:
            num_weak = ending.num
            at = 1
        elif not num_weak:
            letter = source.take(1)
            say("" if may_drop_line and letter == "\n" else letter)
            may_drop_line = False
        else:
            at += 1
    source.take(num_weak)


def typed(text: str, schema: Schema, whole: Schema = NOTHING) -> str:
    """JSON for a value that a model wrote without marks around texts.

    A text of the schema stays as it was written, unless it is JSON for another type of the schema: of a text or null
    only "null" is null. Without a type, JSON is read, and Python's spelling of it.
    """
    alternatives = alternatives_of(schema, whole)
    said_text = json.dumps(text, ensure_ascii=False)
    if any(text in listed_texts(one) for one in alternatives):
        return said_text
    is_free, is_declared = (any(map(accepts, alternatives)) for accepts in (takes_texts, is_declared_text))
    plain = text.strip(SPACE)
    try:
        said = json_of(plain)
        value = json.loads(said)
        is_other = kind_of(value) != "string" and plain not in PYTHON_WORDS
        if not is_declared or (is_other and any(takes(one, value) for one in alternatives)):
            return said
    except NotACallError:
        pass
    if is_declared:
        return said_text
    if plain.lower() in WORDS and not is_free:
        return json.dumps(WORDS[plain.lower()])
    try:
        return python_value(plain) if plain.startswith(("[", "{")) else said_text
    except NotACallError:
        return said_text


def is_declared_text(schema: Schema) -> bool:
    """Whether a schema says that its values are texts, or lists texts."""
    return schema.get("type") == "string" or bool(listed_texts(schema))
