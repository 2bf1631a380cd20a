"""Which cases of a parametrised test run by default, and which with the slow tests."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

slow = pytest.mark.slow


def rest_slow(values: Iterable[Any], num_default: int) -> list[Any]:
    """The first cases run by default, the others with the slow tests."""
    return [
        value if number < num_default else pytest.param(value, marks=pytest.mark.slow)
        for number, value in enumerate(values)
    ]


def in_turn(values: Sequence[Any], partners: Sequence[Any]) -> list[Any]:
    """All pairs, of which by default each value and each partner has its turn, those of the longer list once."""
    return [
        pytest.param(value, partner, marks=() if (first - second) % min(len(values), len(partners)) == 0 else slow)
        for first, value in enumerate(values)
        for second, partner in enumerate(partners)
    ]


def rest_soak(values: Iterable[Any], num_default: int) -> list[Any]:
    """The first cases run by default, the many others with the slow tests, each minutes long."""
    marks = (pytest.mark.slow, pytest.mark.soak)
    return [value if number < num_default else pytest.param(value, marks=marks) for number, value in enumerate(values)]


def parted(num_chunks: int, cases_per_chunk: int) -> list[range]:
    """The numbers of random cases, chunk by chunk; the first one, of which half run by default, in two parts."""
    half = cases_per_chunk // 2
    whole = cases_per_chunk
    later = (range(number * whole, (number + 1) * whole) for number in range(1, num_chunks))
    return [range(half), range(half, whole), *later]
