"""What a draft's probabilities are worth, learnt from what came true."""

import math
import random

import pytest

from forerun.speculation.growth import MEMORY, AcceptanceTable


def test_nothing_seen_is_the_drafts_own_word() -> None:
    table = AcceptanceTable()
    for log_prob in (-0.001, -0.7, -3.0, -40.0):
        (cell,) = table.cells([log_prob], depth=1)
        assert table.log_prob(cell, log_prob) == pytest.approx(log_prob)


def test_an_overconfident_draft_is_believed_less_and_a_shy_one_more() -> None:
    rng = random.Random(1)
    for said, real in ((0.9, 0.4), (0.2, 0.7)):
        table = AcceptanceTable()
        (cell,) = table.cells([math.log(said)], depth=2)
        for _ in range(3000):
            table.count(cell, rng.random() < real)
        assert math.exp(table.log_prob(cell, math.log(said))) == pytest.approx(real, abs=0.05)


def test_it_forgets_what_is_long_past() -> None:
    table = AcceptanceTable()
    (cell,) = table.cells([-0.5], depth=1)
    for came_true in (True, False):
        for _ in range(int(4 * MEMORY)):
            table.count(cell, came_true)
    assert math.exp(table.log_prob(cell, -0.5)) < 0.1


def test_kinds_of_guesses_are_told_apart() -> None:
    table = AcceptanceTable()
    first = table.cells([-0.1, -0.1, -0.1, -0.1, -0.1], depth=1)
    assert len(set(first)) == 4, "ranks from the fourth on are one kind"
    assert len({table.cells([-0.1], depth)[0] for depth in (1, 2, 3, 4, 9)}) == 3
    assert table.cells([0.0], 1)[0] == table.cells([1e-9], 1)[0], "rounding may leave a hair above zero"
    assert table.cells([-1e9], 1)[0] == table.cells([-50.0], 1)[0]


def test_a_guess_as_good_as_impossible_has_a_chance_that_can_be_reckoned_with() -> None:
    """At a low temperature a draft's second guess may be a thousand nats behind its first."""
    table = AcceptanceTable()
    cell = table.cells([-1e5], 1)[0]
    for _ in range(3 * round(MEMORY)):
        assert -1000.0 < table.log_prob(cell, -1e5) < -500.0
        table.count(cell, False)
