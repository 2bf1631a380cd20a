"""Intervals that cover what they promise."""

import numpy as np
import pytest

from forerun_lab.bench.report.bootstrap import MIN_PROMPTS, Resamples, estimate, student_tail


def test_the_value_is_the_ratio_of_means() -> None:
    found = estimate([2.0, 4.0, 6.0, 8.0, 10.0], [1.0, 1.0, 2.0, 3.0, 3.0])
    assert found.value == pytest.approx(3.0)
    assert found.num_prompts == 5
    assert found.low is not None
    assert found.high is not None
    assert found.low < 3.0 < found.high


def test_pairs_that_share_a_ratio_have_no_scatter_however_prompts_differ() -> None:
    found = estimate([2.0, 20.0, 200.0, 4.0, 8.0], [1.0, 10.0, 100.0, 2.0, 4.0])
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))


def test_too_few_prompts_give_a_value_and_no_interval() -> None:
    found = estimate([1.0] * (MIN_PROMPTS - 1))
    assert (found.value, found.low, found.high) == (1.0, None, None)
    assert Resamples([0.1] * (MIN_PROMPTS - 1), [1.0] * (MIN_PROMPTS - 1)).chance_of_at_least(1.0) == 1.0


@pytest.mark.parametrize("num_prompts", [6, 20])
def test_the_interval_covers_the_true_ratio_as_often_as_it_says(num_prompts: int) -> None:
    random = np.random.default_rng(7)
    true = 1.8 * np.exp(0.25**2 / 2)
    num_covered = 0
    for _ in range(400):
        base = random.lognormal(3, 0.1, num_prompts)
        values = base * random.lognormal(np.log(1.8), 0.25, num_prompts)
        found = Resamples(list(values), list(base), num_resamples=800).estimate()
        assert found.low is not None
        assert found.high is not None
        num_covered += found.low < true < found.high
    assert 0.92 <= num_covered / 400 <= 0.98


@pytest.mark.parametrize(
    ("score", "degrees", "tail"),
    [(0.0, 5, 0.5), (1.0, 1, 0.25), (6.314, 1, 0.05), (4.303, 2, 0.025), (3.182, 3, 0.025), (2.776, 4, 0.025),
     (2.093, 19, 0.025), (2.861, 19, 0.005), (1.984, 100, 0.025), (-2.093, 19, 0.975)],
)  # fmt: skip
def test_tails_of_student_are_those_of_the_tables(score: float, degrees: int, tail: float) -> None:
    assert student_tail(score, degrees) == pytest.approx(tail, rel=2e-3)


def test_prompts_that_bound_nothing_give_no_interval() -> None:
    found = estimate([1.0, 1.0, 1.0, 1.0, 5.0])
    assert found.value == pytest.approx(1.8)
    assert found.high is None
