"""What rounds take by their rows follows what is measured, and no single stall."""

import pytest

from forerun.core.pace import Pace
from forerun.speculation.referee.costs import RoundCosts

PACE = Pace(steps=((1, 10.0), (2, 11.0), (4, 14.0), (8, 20.0)))


def test_passes_as_they_were_measured_count_until_rounds_are() -> None:
    costs = RoundCosts(PACE)
    assert [costs.step_s(rows) for rows in (1, 2, 3, 4, 8, 9)] == [10.0, 11.0, 14.0, 14.0, 20.0, 20.0]
    assert costs.plain_s == 10.0


def test_what_rounds_of_one_width_take_beyond_their_pass_is_expected_of_all() -> None:
    costs = RoundCosts(PACE)
    for _ in range(400):
        costs.measure(1, 11.0)
    assert costs.plain_s == pytest.approx(11.0, rel=0.01)
    assert costs.step_s(8) == pytest.approx(21.0, rel=0.02)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_width_that_was_measured_wrongly_is_put_right_within_some_dozen_rounds(factor: float) -> None:
    costs = RoundCosts(PACE)
    for _ in range(60):
        costs.measure(1, 10.0)
        costs.measure(4, factor * 14.0)
    assert costs.plain_s == pytest.approx(10.0, rel=0.02)
    assert costs.step_s(4) == pytest.approx(factor * 14.0, rel=0.35)


def test_passes_that_other_load_slowed_while_they_were_measured_are_corrected_by_plain_rounds() -> None:
    costs = RoundCosts(PACE)
    for _ in range(40):
        costs.measure(1, 5.0)
    assert costs.plain_s == pytest.approx(5.0, rel=0.02)
    assert costs.step_s(8) == pytest.approx(10.0, rel=0.02)
    for _ in range(3):
        costs.measure(8, 14.0)
    assert costs.step_s(8) > 12.5, "what was measured under load counts for little"


def test_rounds_told_together_count_as_many() -> None:
    one = RoundCosts(PACE)
    many = RoundCosts(PACE)
    for _ in range(16):
        one.measure(2, 12.0)
    many.measure(2, 12.0, 16)
    assert many.step_s(2) == pytest.approx(one.step_s(2), rel=0.03)


def test_the_rows_within_a_time_are_those_that_fit_with_their_proposal() -> None:
    costs = RoundCosts(PACE)
    assert [costs.rows_within(extra_s, 0.0, 1.0) for extra_s in (-1.0, 0.0, 0.9, 1.0, 4.0, 100.0)] == [1, 1, 1, 2, 4, 8]
    assert costs.rows_within(4.0, 1.0, 1.0) == 2
    assert costs.rows_within(4.0, 1.0, 100.0) == 2, "a small tree takes less than the usual one, but not nothing"
    assert costs.rows_within(4.05, 1.0, 100.0) == 4
    assert costs.rows_within(2.0, 3.0, 4.0) == 2, "three passes make the usual tree of four rows, one of them makes two"
