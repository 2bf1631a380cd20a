"""Finds the marks of calls by comparing a chat template's texts for one call and for two.

Source: the idea of llama.cpp's docs/autoparser.md; this file supports only three kinds of formats.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from forerun.core.shared_length import shared_length
from forerun.text.output.traits import CallFormat

NAMES: Final = ("probe_first", "probe_other")
KEYS: Final = ("probe_key", "probe_more")
VALUES: Final = ("probe value", "probe last")
ARGUMENTS: Final = dict(zip(KEYS, VALUES, strict=True))
MARK_STARTS = re.compile(r"[<\[\n]")
MARK_ENDS = re.compile(r".*[>\]\n]", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """The texts around calls, and between two calls."""

    section_begin: str
    call_begin: str
    call_end: str
    section_end: str
    separator: str


def format_of(one: str, two: str | None) -> CallFormat | None:
    """The format of calls; None if it is not found.

    Args:
        one, two: the template's texts for one call and for two; None if it accepts only one.
    """
    if NAMES[0] not in one:
        return None
    return _json_format(one, two) or _named_format(one, two) or _tagged_format(one, two)


def _json_format(one: str, two: str | None) -> CallFormat | None:
    first = _object_with(one, NAMES[0])
    if first is None:
        return None
    start, end, value = first
    name_key = next((key for key, said in value.items() if said == NAMES[0]), None)
    arguments_key = next((key for key, said in value.items() if said == ARGUMENTS), None)
    if name_key is None or arguments_key is None:
        return None
    other = None if two is None else _object_with(two, NAMES[1])
    before = one[:start]
    after = one[end:]
    between = None if two is None or other is None else two[end : other[0]]
    keys: dict[str, Any] = {"name_key": name_key, "arguments_key": arguments_key}
    if before.rstrip().endswith("[") and after.lstrip().startswith("]"):
        begin = before.rstrip()[:-1]
        return CallFormat(
            kind="json",
            is_list=True,
            section_begin=begin,
            section_end=closed(begin, after.lstrip()[1:]),
            separator=between or ", ",
            **keys,
        )
    return CallFormat(kind="json", **_as_fields(_marks(before, after, between)), **keys)


def _named_format(one: str, two: str | None) -> CallFormat | None:
    name = one.index(NAMES[0])
    found = _object_with(one, KEYS[0])
    if found is None or found[0] < name or found[2] != ARGUMENTS:
        return None
    start, end, _ = found
    between = None if two is None or NAMES[1] not in two else two[end : two.index(NAMES[1])]
    marks = _marks(one[:name], one[end:], between)
    return CallFormat(kind="named", **_as_fields(marks), name_end=one[name + len(NAMES[0]) : start])


def _tagged_format(one: str, two: str | None) -> CallFormat | None:
    words = (NAMES[0], KEYS[0], VALUES[0], KEYS[1], VALUES[1])
    found = re.fullmatch("(.*?)" + "(.*?)".join(map(re.escape, words)) + "(.*)", one, re.DOTALL)
    if found is None:
        return None
    before, to_key, to_value, to_next_key, to_next_value, after = found.groups()
    if to_value != to_next_value or not to_value.strip() or to_value.strip(" ") in (":", "=", "': '", "': "):
        return None
    parameter_begin = same_end(to_key, to_next_key)
    parameter_end = to_next_key[: len(to_next_key) - len(parameter_begin)]
    if not parameter_end.strip() or not after.startswith(parameter_end.rstrip()):
        return None
    tail = after[len(parameter_end.rstrip()) :]
    between = None
    if two is not None and NAMES[1] in two:
        between = two[len(one) - len(tail) : two.index(NAMES[1])]
    marks = _marks(before, tail, between)
    place = marks.call_begin.rfind("<")
    has_name_mark = place >= 0 and not marks.call_begin.rstrip().endswith(">")
    name_begin = marks.call_begin[place:] if has_name_mark else ""
    num_of_end = marks.call_end.find(">") + 1 if has_name_mark else 0
    fields = _as_fields(marks) | {
        "call_begin": marks.call_begin[: len(marks.call_begin) - len(name_begin)],
        "call_end": marks.call_end[num_of_end:],
    }
    return CallFormat(
        kind="tagged",
        **fields,
        name_begin=name_begin,
        name_end=to_key[: len(to_key) - len(parameter_begin)],
        parameter_begin=parameter_begin,
        parameter_name_end=to_value,
        parameter_end=parameter_end.rstrip(),
        arguments_end=marks.call_end[:num_of_end],
    )


def _marks(before: str, after: str, between: str | None) -> Marks:
    """Divide the text around a call into marks around each call and marks around all, which `between` lacks."""
    if between is None:
        return Marks(section_begin="", call_begin=before, call_end=after, section_end="", separator="")
    call_begin = same_end(before, between)
    left = between[: len(between) - len(call_begin)]
    call_end = same_start(after, left)
    if call_end not in (after, left):
        found = MARK_ENDS.match(call_end)
        call_end = found.group() if found else ""
    return Marks(
        section_begin=before[: len(before) - len(call_begin)],
        call_begin=call_begin,
        call_end=call_end,
        section_end=after[len(call_end) :],
        separator=left[len(call_end) :],
    )


def closed(begin: str, end: str) -> str:
    """The end mark up to the tag that closes the begin mark, if it has one: the text after it ends the message."""
    tag = begin.strip().replace("<", "</", 1)
    return end[: end.index(tag) + len(tag)] if tag.startswith("</") and tag in end else end


def _as_fields(marks: Marks) -> dict[str, Any]:
    return {name: getattr(marks, name) for name in Marks.__slots__}


def same_start(one: str, other: str) -> str:
    """The longest text with which both begin."""
    return one[: shared_length(one, other)]


def same_end(one: str, other: str) -> str:
    """The longest text with which both end, from the beginning of a mark on."""
    same = same_start(one[::-1], other[::-1])[::-1]
    if found := MARK_STARTS.search(same):
        return same[found.start() :]
    return same if same in (one, other) else ""


def _object_with(text: str, word: str) -> tuple[int, int, Mapping[str, Any]] | None:
    """Start, end and value of the JSON object around the first occurrence of a word."""
    place = text.find(word)
    for start in (found.start() for found in re.finditer(r"\{", text[: max(place, 0)])):
        try:
            value, end = json.JSONDecoder().raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if end > place and isinstance(value, dict):
            return start, end, value
    return None
