"""Strict JSON: no NaN, no duplicate keys, no huge numbers, no unpaired surrogates, limited depth.

It is written by hand: msgspec accepts duplicate keys, its limit on depth cannot be set, and it does not say which of
these faults a body has, as the server's answers do.
"""

import json
import re
from math import isfinite
from typing import Any, Final, NoReturn

from forerun.server.protocols.errors import ApiError, invalid

MAX_INTEGER_DIGITS: Final = 19  # of 2**63 - 1, the largest seed
MAX_KEYS: Final = 4096  # per object; a valid request has at most 1,024, in logit_bias
MAX_BRACKETS: Final = 16384  # 2,048 messages with two parts each need about half of them
HALF_CHARACTER: Final = re.compile("[\ud800-\udfff]")
# Also matches an unterminated string; otherwise the search would start again at every quote in it and take quadratic
# time.
TEXT: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
BRACKET: Final = re.compile(rb"[\[\]{}]")


def read_json(body: bytes, *, max_depth: int) -> Any:
    """Parse a request's body, which may begin with a byte order mark.

    Raises:
        ApiError: it is not valid strict JSON.
    """
    require_shallow(body, max_depth)
    try:
        return json.loads(
            body.decode("utf-8-sig"),
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_int=_small,
            parse_float=_finite,
        )
    except ApiError:
        raise
    except (ValueError, RecursionError):
        raise broken("The request body is not valid JSON in UTF-8.") from None


def require_shallow(body: bytes, max_depth: int) -> None:
    """Raise ApiError if brackets nest too deep or are too many. Checked before parsing, which has no such limits."""
    num_opened = body.count(b"[") + body.count(b"{")
    if num_opened <= max_depth:
        return
    marks = BRACKET.findall(TEXT.sub(b"", body))
    if len(marks) > 2 * MAX_BRACKETS:
        raise broken(f"The request body has more than {MAX_BRACKETS} lists and objects.")
    depth = 0
    for mark in marks:
        depth += 1 if mark in b"[{" else -1
        if depth > max_depth:
            raise broken(f"The request body nests deeper than {max_depth} levels.")


def broken(message: str) -> ApiError:
    return invalid(message, code="invalid_json")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise broken("The request body has an object with a duplicate key.")
    if len(pairs) > MAX_KEYS:
        raise broken(f"The request body has an object with more than {MAX_KEYS} keys.")
    for key, value in pairs:
        _require_characters(key)
        _require_characters(value)
    return found


def _require_characters(value: Any) -> None:
    match value:
        case str():
            if HALF_CHARACTER.search(value):
                raise broken("The request body has half of a surrogate pair, which is not a character.")
        case list():
            for item in value:
                if isinstance(item, str | list):
                    _require_characters(item)


def _refuse_constant(name: str) -> NoReturn:
    raise broken("The request body has NaN or Infinity, which are not valid JSON.")


def _small(digits: str) -> int:
    if len(digits.lstrip("-")) > MAX_INTEGER_DIGITS:
        raise broken(f"The request body has a whole number of more than {MAX_INTEGER_DIGITS} digits.")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if not isfinite(value):
        raise broken("The request body has a number that is too large for a float.")
    return value
