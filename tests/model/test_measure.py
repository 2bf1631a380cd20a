"""What a pass costs by its rows: measured in virtual time, where the answer is known."""

from itertools import combinations

import pytest
import torch

from forerun.model import measure
from forerun.model.inputs import ForwardInput
from forerun.model.measure import measure_pace, rising
from forerun.model.runner import Runner
from tests.tiny import plain_spec, random_weights, tiny_runner

SPEC = plain_spec()


def runner_of(capacity: int = 128) -> Runner:
    return tiny_runner(SPEC, random_weights(SPEC, torch.Generator().manual_seed(0)), capacity=capacity)


@pytest.mark.parametrize(
    "values",
    [
        [3.0],
        [1.0, 2.0, 3.0],
        [3.0, 2.0, 1.0],
        [2.0, 2.0],
        [1.0, 3.0, 2.0, 4.0],
        [1.0, 4.0, 3.0, 2.0, 5.0, 4.5],
        [5, 1, 9],
    ],
    ids=str,
)
def test_rising_values_are_the_nearest_ones(values: list[float]) -> None:
    """By trying every way to cut them into runs, each at its mean."""
    best = min(
        (fitted for fitted in every_fit(values) if fitted == sorted(fitted)),
        key=lambda fitted: sum((left - right) ** 2 for left, right in zip(values, fitted, strict=True)),
    )
    assert rising(values) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(30))
def test_rising_values_are_the_nearest_ones_at_random(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    test_rising_values_are_the_nearest_ones(torch.randint(0, 6, (seed % 8 + 1,), generator=generator).double().tolist())


def every_fit(values: list[float]) -> list[list[float]]:
    fits = []
    for num_cuts in range(len(values)):
        for cuts in combinations(range(1, len(values)), num_cuts):
            runs = [values[start:end] for start, end in zip((0, *cuts), (*cuts, len(values)), strict=True)]
            fits.append([sum(run) / len(run) for run in runs for _ in run])
    return fits


class Passes:
    """Passes that take what a table says, the first of a width longer, and now and then one that was disturbed."""

    def __init__(self, runner: Runner, monkeypatch: pytest.MonkeyPatch, times: dict[int, float]) -> None:
        self.now, self.rows, self._times = 0.0, [0], times
        self.contexts: set[int] = set()
        self._runner, self._forward = runner, runner.forward
        monkeypatch.setattr(measure, "perf_counter", lambda: self.now)
        monkeypatch.setattr(runner, "forward", self.forward)

    def forward(self, inputs: ForwardInput) -> torch.Tensor:
        rows = len(inputs.token_ids)
        if inputs.num_logit_rows:  # not the context's own
            self.contexts.add(inputs.prefix_len)
            is_first, is_disturbed = self.rows[-1] != rows, len(self.rows) % 7 == 0
            self.now += self._times[rows] + 0.5 * is_first + 2.0 * is_disturbed
            self.rows.append(rows)
        return self._forward(inputs)


def test_every_width_gets_its_undisturbed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, times = runner_of(), {1: 1.0, 2: 1.25, 5: 1.5, 8: 3.0}
    passes = Passes(runner, monkeypatch, times)
    pace = measure_pace(runner, list(times), context=20, budget_s=1e9)
    assert dict(pace.steps) == pytest.approx(times)
    assert passes.contexts == {20}


def test_times_that_fall_with_more_rows_are_evened_out(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = runner_of()
    Passes(runner, monkeypatch, {1: 1.0, 2: 4.0, 3: 2.0})
    pace = measure_pace(runner, (1, 2, 3), budget_s=1e9)
    assert [seconds for _, seconds in pace.steps] == pytest.approx([1.0, 3.0, 3.0])


def test_a_slow_model_is_measured_only_as_often_as_it_must_be(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for budget_s in (0.0, 1e9):
        runner = runner_of()
        passes = Passes(runner, monkeypatch, {1: 1.0, 4: 1.0})
        measure_pace(runner, (1, 4), budget_s=budget_s)
        counts.append(len(passes.rows) - 1)
    few, many = measure.LEAST_REPEATS, measure.MOST_REPEATS
    assert counts == [2 * measure.PASSES_PER_REPEAT * repeats for repeats in (few, many)]


@pytest.mark.parametrize("capacity", [8, 40, 128])
def test_the_cache_is_empty_afterwards_and_its_room_is_enough(capacity: int) -> None:
    runner = runner_of(capacity)
    runner.sync([1, 2, 3])
    pace = measure_pace(runner, range(1, 9), budget_s=0.0)
    assert [rows for rows, _ in pace.steps] == list(range(1, 9))
    assert (runner.cached_ids, runner.cache.committed_len, runner.cache.num_tree) == ([], 0, 0)
