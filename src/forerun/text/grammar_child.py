"""A process that tries to compile an untrusted grammar, within limits: it may be killed at any moment, or crash."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from time import monotonic
from typing import Any, Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from forerun.text.child_loop import Answer, Said, answer_questions

STACK_BYTES: Final = 2**20  # less than other threads have, so that nested rules overflow the stack here first
SEARCH_S: Final = 0.2
NUM_BYTES: Final = 256
NAMED_TOKENS: Final = re.compile(r"<\[[\d,^*-]+\]>")
SHARED: Final = ("$defs", "definitions", "x-guidance")  # keys of the whole schema that its parts need


class _Bytes:
    """A vocabulary of single bytes and one token that ends a text, which replaces all named tokens."""

    bos_token_id, eos_token_id = None, NUM_BYTES
    tokens: Final = [*(bytes([value]) for value in range(NUM_BYTES)), b"\xff<end>"]
    special_token_ids: Final = [NUM_BYTES]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


def main() -> None:
    """Answer until the input ends."""
    answer_questions(begin)


def begin(head: Said) -> Answer:
    """Return the function that compiles: it turns {"source", "schemas", "fuel"} into {"fault", "place"}, both "" if the
    grammar can be compiled."""
    tokens = LLTokenizer(TokenizerWrapper(_Bytes()))

    def answer(asked: Said) -> Said:
        def fault_of(source: str) -> str:
            first, step = asked["fuel"]
            limits = LLParserLimits(initial_lexer_fuel=first, step_lexer_fuel=step)
            matcher = LLMatcher(tokens, NAMED_TOKENS.sub(f"<[{NUM_BYTES}]>", source), log_level=0, limits=limits)
            if not matcher.is_error():
                matcher.compute_bitmask()
            return first_lines(matcher.get_error()) if matcher.is_error() else ""

        found = {"fault": "", "place": ""}

        def work() -> None:
            found["fault"] = fault_of(asked["source"])
            if found["fault"]:
                found["place"] = place_of(asked["schemas"], fault_of)

        threading.stack_size(STACK_BYTES)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return found

    return answer


def first_lines(error: str) -> str:
    """llguidance's message for a fault, without the grammar in it."""
    text = error.partition("<state>")[0].partition("\n   1 | ")[0]
    return " ".join(text.rpartition("failed to compile JSON schema: ")[2].split())


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
            found, part = f"{found}.{inner[0]}", inner[1]
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
