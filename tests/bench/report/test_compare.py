"""Slower beyond noise: seldom said of equal runs, always of slower ones."""

from functools import cache

import numpy as np
import pytest

from forerun.core.errors import ConfigError
from forerun_lab.bench.records.run_folder import RecordedRun
from forerun_lab.bench.report.compare import RunSpeeds, compare, holm
from forerun_lab.bench.report.summary import PromptSpeed, summarise_run
from tests.bench.sample_run import sample_records

NUM_DATASETS = 4
NUM_CONTESTANTS = 4
NUM_PROMPTS = 20


def report(seed: int, *, factor: float = 1.0, noise: float = 0.02, num_prompts: int = NUM_PROMPTS) -> RunSpeeds:
    """Prompts that differ by a third, measured with some noise, times a factor."""
    random = np.random.default_rng(seed)
    prompts = np.random.default_rng(0).lognormal(4, 0.3, (NUM_DATASETS, NUM_CONTESTANTS, num_prompts))
    speeds = prompts * random.lognormal(0, noise, prompts.shape) * factor
    rows = {
        (f"set{dataset}", f"contestant{contestant}", 0.0): [
            PromptSpeed(question_id=place, tokens_per_s=float(speed), num_tokens=64)
            for place, speed in enumerate(speeds[dataset, contestant])
        ]
        for dataset in range(NUM_DATASETS)
        for contestant in range(NUM_CONTESTANTS)
    }
    return RunSpeeds(kind="decode", rows=rows)


@cache
def sample(slowdown: float = 1.0, seed: int = 0) -> RunSpeeds:
    records = sample_records(
        datasets=("qa",), contestants=("none", "parallel"), temperatures=(0.0,), num_prompts=8, num_tokens=32,
        slowdown=slowdown, seed=seed,
    )  # fmt: skip
    return RunSpeeds.of(summarise_run(RecordedRun(records=tuple(records)), baseline="none"))


def test_holm_asks_most_of_the_best_and_stops_at_the_first_that_fails() -> None:
    assert holm([0.01, 0.04, 0.03], 0.05) == [True, False, False]
    assert holm([0.01, 0.02, 0.03], 0.05) == [True, True, True]
    assert holm([0.02, 0.001, 0.9], 0.05) == [True, True, False]
    assert holm([], 0.05) == []


def false_alarms(num_trials: int, **changes: int) -> int:
    return sum(
        compare(report(2 * trial, **changes), report(2 * trial + 1, **changes)).is_slower for trial in range(num_trials)
    )


def test_twenty_rows_of_noise_seldom_fail() -> None:
    assert false_alarms(12) <= 2  # 0.3 are expected; without Holm it would be five


def test_a_slowdown_of_five_percent_is_found() -> None:
    found = [compare(report(2 * trial), report(2 * trial + 1, factor=0.95)) for trial in range(4)]
    assert all(comparison.is_slower for comparison in found)
    assert sum(row.is_slower for comparison in found for row in comparison.rows) > 0.95 * 4 * 20


def test_a_tolerated_slowdown_is_let_pass_and_a_larger_one_is_not() -> None:
    before = report(1)
    assert not compare(before, report(2, factor=0.97), tolerance=0.05).is_slower
    assert compare(before, report(2, factor=0.90), tolerance=0.05).is_slower


def test_summaries_of_real_records_are_paired_by_prompt() -> None:
    assert not compare(sample(), sample(seed=1), tolerance=0.02).is_slower
    slower = compare(sample(), sample(slowdown=1.25, seed=1))
    assert [row.is_slower for row in slower.rows if row.contestant == "none"] == [True]


def test_reports_without_common_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match="share no question"):
        compare(report(1), RunSpeeds(kind="decode", rows={}))
    with pytest.raises(ConfigError, match="decode speeds"):
        compare(report(1), RunSpeeds(kind="whole", rows=report(1).rows))
