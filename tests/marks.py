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


def in_turn(values: Sequence[Any], partners: Sequence[Any], num_default: int | None = None) -> list[Any]:
    """All pairs, of which by default each value and each partner has its turn, those of the longer list once.

    Of many pairs in turn the first `num_default` run by default.
    """
    pairs = [(first, second) for first in range(len(values)) for second in range(len(partners))]
    turns = [pair for pair in pairs if (pair[0] - pair[1]) % min(len(values), len(partners)) == 0][:num_default]
    return [
        pytest.param(values[first], partners[second], marks=() if (first, second) in turns else slow)
        for first, second in pairs
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
