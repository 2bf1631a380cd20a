"""What a draft's probabilities are worth, learnt from what came true."""

import math
import random

import pytest

from forerun.speculation.growth import MEMORY, AcceptanceTable


def test_an_overconfident_draft_is_believed_less_and_a_shy_one_more() -> None:
    rng = random.Random(1)
    for said, real in ((0.9, 0.4), (0.2, 0.7)):
        table = AcceptanceTable()
        (cell,), _ = table.calibrate([math.log(said)], depth=2)
        for _ in range(3000):
            table.count(cell, rng.random() < real)
        _, (value,) = table.calibrate([math.log(said)], depth=2)
        assert math.exp(value) == pytest.approx(real, abs=0.05)


def test_kinds_of_guesses_are_told_apart() -> None:
    table = AcceptanceTable()

    def cells(log_probs: list[float], depth: int = 1) -> list[int]:
        return table.calibrate(log_probs, depth)[0]

    assert len(set(cells([-0.1, -0.1, -0.1, -0.1, -0.1]))) == 4, "ranks from the fourth on are one kind"
    assert len({cells([-0.1], depth)[0] for depth in (1, 2, 3, 4, 9)}) == 3
    assert cells([0.0]) == cells([1e-9]), "rounding may leave a hair above zero"
    assert cells([-1e9]) == cells([-50.0])


def test_a_guess_as_good_as_impossible_has_a_chance_that_can_be_reckoned_with() -> None:
    """At a low temperature a draft's second guess may be a thousand nats behind its first."""
    table = AcceptanceTable()
    for _ in range(3 * round(MEMORY)):
        (cell,), (value,) = table.calibrate([-1e5], 1)
        assert -1000.0 < value < -500.0
        table.count(cell, False)
