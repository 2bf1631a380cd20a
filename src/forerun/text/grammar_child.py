"""A process that tries to compile an untrusted grammar, within limits: it may be killed at any moment, or crash."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from random import Random
from time import monotonic
from typing import Any, Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from forerun.wires.child_loop import Answer, Said, answer_questions

STACK_BYTES: Final = 2**20  # less than other threads have, so that nested rules overflow the stack here first
SEARCH_S: Final = 0.2
WALK_S = 0.1  # for texts of a whole grammar
WALK_PART_S = 0.02  # for texts of a part in which a fault is searched
NUM_SHORT = 2
NUM_WALKS = 16
MAX_STEPS = 1_000
MAX_DEPTH = 64
CLOSERS: Final = tuple(b'"}]0123456789tfn')  # what may end a JSON value, the likeliest first
OPENERS: Final = tuple(b",{[")  # what makes it longer
OF_LIMITS: Final = ("too many", "fuel", "limit")  # in messages about llguidance's limits
NUM_BYTES: Final = 256
NAMED_TOKENS: Final = re.compile(r"<\[[\d,^*-]+\]>")
DEAD_ENDS: Final = ("it allows texts that cannot be completed", "its lists or objects hold each other without end")
SHARED: Final = ("$defs", "definitions", "x-guidance")  # keys of the whole schema that its parts need


class _Bytes:
    """A vocabulary of single bytes and one token that ends a text, which replaces all named tokens."""

    bos_token_id = None
    eos_token_id = NUM_BYTES
    tokens: Final = [*(bytes([value]) for value in range(NUM_BYTES)), b"\xff<end>"]
    special_token_ids: Final = [NUM_BYTES]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


def main() -> None:
    """Answer until the input ends."""
    answer_questions(answerer)


def answerer(head: Said) -> Answer:
    """Return the function that compiles: it turns {"source", "schemas", "limits"} into {"fault", "place"}, both "" if
    the grammar can be used."""
    tokens = LLTokenizer(TokenizerWrapper(_Bytes()))

    def answer(asked: Said) -> Said:
        def fault_of(source: str, walk_s: float) -> str:
            limits = LLParserLimits(**asked["limits"])
            matcher = LLMatcher(tokens, NAMED_TOKENS.sub(f"<[{NUM_BYTES}]>", source), log_level=0, limits=limits)
            if not matcher.is_error():
                matcher.compute_bitmask()
            if matcher.is_error():
                return first_lines(matcher.get_error())
            return dead_end_of(matcher, monotonic() + walk_s) if walk_s else ""

        found = {"fault": "", "place": ""}

        def work() -> None:
            found["fault"] = fault_of(asked["source"], WALK_S)
            walk_s = WALK_PART_S if found["fault"].startswith(DEAD_ENDS) else 0.0
            if found["fault"]:
                found["place"] = place_of(asked["schemas"], lambda source: fault_of(source, walk_s))

        threading.stack_size(STACK_BYTES)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return found

    return answer


def dead_end_of(start: LLMatcher, until: float) -> str:
    """What is wrong with a grammar that allows beginnings of texts that cannot be completed; "" if none is found.

    The first texts end as soon as they can, the others are longer.

    Args:
        until: when to give up, in seconds of the monotonic clock.
    """
    walks = (walk(start.deep_copy(), number, until) for number in range(NUM_WALKS))
    return next((fault for fault in walks if fault), "")


def walk(matcher: LLMatcher, number: int, until: float) -> str:
    """Write a text that the grammar allows, another one for each number; return a fault if it cannot go on."""
    random = Random(number)
    is_short = number < NUM_SHORT
    written = bytearray()
    depth = 0
    for _ in range(MAX_STEPS):
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        allowed = [] if matcher.is_error() else [token for token in range(NUM_BYTES + 1) if mask >> token & 1]
        if monotonic() > until or (matcher.is_accepting() and (is_short or allowed == [NUM_BYTES])):
            return ""
        is_stuck = not allowed
        if allowed:
            closers = [token for token in CLOSERS if token in allowed]
            others = [token for token in allowed if token not in OPENERS] or allowed
            if is_short:
                token = closers[0] if closers else random.choice(others)
            else:
                token = random.choice(closers if closers and random.random() < 0.5 else allowed)
            is_stuck = not matcher.consume_token(token)
            if token < NUM_BYTES:
                written.append(token)
            depth += (token in b"[{") - (token in b"]}")
        shown = bytes(written[-80:]).decode(errors="replace")
        if is_stuck:
            if not is_short and any(word in matcher.get_error() for word in OF_LIMITS):
                return ""  # which other texts do not reach
            return f"{DEAD_ENDS[0]}, such as one that begins with {shown}"
        if is_short and depth > MAX_DEPTH:
            return DEAD_ENDS[1]
    return ""


def first_lines(error: str) -> str:
    """llguidance's message for a fault, without the grammar in it, and with advice that a client can take."""
    text = error.partition("<state>")[0].partition("\n   1 | ")[0]
    text = " ".join(text.rpartition("failed to compile JSON schema: ")[2].split())
    if "coerce_one_of" in text:
        return "the alternatives of oneOf overlap, which is not supported: use anyOf"
    return text


def place_of(schemas: Mapping[str, Any], fault_of: Callable[[str], str]) -> str:
    """The path of the smallest part of the schemas that cannot be compiled, and its keyword if one is the cause.

    Args:
        schemas: by their paths in the request.
    """
    until = monotonic() + SEARCH_S

    def fails(schema: Any, whole: Any) -> bool:
        shared = {key: whole[key] for key in SHARED if key in whole}
        source = LLMatcher.grammar_from_json_schema({**shared, **schema})
        return monotonic() < until and fault_of(source) != ""

    for place, whole in schemas.items():
        if not isinstance(whole, dict) or not fails(whole, whole):
            continue
        part: Mapping[str, Any] = whole
        found = place
        while inner := next(((path, item) for path, item in parts_of(part) if fails(item, whole)), None):
            found = f"{found}.{inner[0]}"
            part = inner[1]
        keys = (
            key
            for key in sorted(part, key="type".__eq__)
            if key not in SHARED and not fails({k: part[k] for k in part if k != key}, whole)
        )
        key = next(keys, None)
        return found if key is None else f"{found}.{key}"
    return ""


def parts_of(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The schemas within a schema, by their paths in it."""
    for key, value in schema.items():
        if key == "x-guidance":
            continue
        if isinstance(value, dict):
            if key in ("items", "additionalProperties", "not"):
                yield key, value
            else:
                yield from ((f"{key}.{name}", item) for name, item in value.items() if isinstance(item, dict))
        elif isinstance(value, list):
            yield from ((f"{key}.{number}", item) for number, item in enumerate(value) if isinstance(item, dict))
