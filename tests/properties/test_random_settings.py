"""Settings from their whole ranges: no text depends on who drafted, no row on its company."""

from collections import Counter

import pytest

from tests.marks import rest_slow
from tests.random_requests import DRAFTERS, MACHINES, Contest, Machine
from tests.row_company import count_rows

NUM_PASSES, NUM_SLOW_PASSES, PASSES_PER_CHUNK = 60, 4000, 200
NUM_REQUESTS, NUM_SLOW_REQUESTS = 8, 100
LOCAL = [name for name in DRAFTERS if name != "parallel"]


def different(totals: Counter[str]) -> dict[str, int]:
    return {name: count for name, count in totals.items() if name.endswith("differ") and count}


def near_ties(totals: Counter[str]) -> int:
    return sum(count for name, count in totals.items() if name.endswith("near-ties"))


def totals_of(machine: Machine, drafters: list[str], numbers: range) -> Counter[str]:
    contest = Contest(machine, drafters, num_asked=len(drafters))
    try:
        for number in numbers:
            contest.play(number)
    finally:
        contest.close()
    return contest.totals


def test_rows_have_the_same_bits_alone_and_in_company() -> None:
    totals: Counter[str] = Counter()
    for number in range(NUM_PASSES):
        count_rows(number, totals)
    assert different(totals) == {}
    assert all(totals[f"{name}: rows"] > 0 for name in ("native", "torch", "filtered", "penalised", "greedy"))


@pytest.mark.parametrize("machine", rest_slow(MACHINES[:3], 1), ids=str)
def test_texts_are_those_of_plain_decoding_and_of_the_textbook(machine: Machine) -> None:
    totals = totals_of(machine, LOCAL, range(NUM_REQUESTS))
    assert different(totals) == {}
    assert machine.kernels == "torch" or near_ties(totals) == 0
    assert totals["textbook: tokens"] == totals["none: tokens"] > NUM_REQUESTS


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("chunk", range(NUM_PASSES // PASSES_PER_CHUNK, NUM_SLOW_PASSES // PASSES_PER_CHUNK))
def test_many_rows_have_the_same_bits_alone_and_in_company(chunk: int) -> None:
    totals: Counter[str] = Counter()
    for number in range(chunk * PASSES_PER_CHUNK, (chunk + 1) * PASSES_PER_CHUNK):
        count_rows(number, totals)
    assert different(totals) == {}


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("machine", MACHINES, ids=str)
def test_many_texts_are_those_of_plain_decoding_and_of_the_textbook(machine: Machine) -> None:
    first = NUM_REQUESTS + NUM_SLOW_REQUESTS * MACHINES.index(machine)
    totals = totals_of(machine, list(DRAFTERS), range(first, first + NUM_SLOW_REQUESTS))
    assert different(totals) == {}
    assert "torch" in str(machine) or near_ties(totals) == 0
