"""What a pass costs by its rows: measured in virtual time, where the answer is known."""

import pytest
import torch

from forerun.core.pace import Pace
from forerun.core.sublayers import ATTENTION, MLP, absent_sublayers, all_sublayers
from forerun.drafting.layer_skip.speed_model import SkipCosts, measure_skip_costs
from forerun.model import pass_times
from forerun.model.executor import ForwardInput, ForwardOutput
from forerun.model.pass_times import MOST_REPEATS, SETTLED_S, measure_pace, measure_reading, rising, stand_in
from forerun.model.runner import Runner
from forerun.model.self_drafting import SharedCacheRunner
from tests.tiny import plain_spec, random_weights, tiny_runner

SPEC = plain_spec()


@pytest.fixture(autouse=True)
def _measured_as_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines of other tests measure less."""
    monkeypatch.setattr(pass_times, "MOST_REPEATS", MOST_REPEATS)
    monkeypatch.setattr(pass_times, "SETTLED_S", SETTLED_S)


def runner_of(capacity: int = 128) -> Runner:
    return tiny_runner(SPEC, random_weights(SPEC, torch.Generator().manual_seed(0)), capacity=capacity)


@pytest.mark.parametrize(
    ("values", "risen"),
    [
        ([3.0], [3.0]),
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]),
        ([3.0, 2.0, 1.0], [1.0, 1.0, 1.0]),
        ([1.0, 3.0, 2.0, 4.0], [1.0, 2.0, 2.0, 4.0]),
        ([1.0, 4.0, 3.0, 2.0, 5.0, 4.5], [1.0, 2.0, 2.0, 2.0, 4.5, 4.5]),
    ],
    ids=str,
)
def test_no_time_is_larger_than_one_of_more_rows(values: list[float], risen: list[float]) -> None:
    assert rising(values) == risen


class Passes:
    """Passes that take what a table says, in milliseconds, the first of a width longer, and now and then one that was
    disturbed."""

    def __init__(self, runner: Runner, monkeypatch: pytest.MonkeyPatch, times: dict[int, float]) -> None:
        self.now = 0.0
        self.rows = [0]
        self._times = times
        self.contexts: set[int] = set()
        self._runner = runner
        self._forward = runner.forward
        monkeypatch.setattr(pass_times, "perf_counter", lambda: self.now)
        monkeypatch.setattr(runner, "forward", self.forward)

    def forward(self, inputs: ForwardInput) -> ForwardOutput:
        rows = len(inputs.token_ids)
        if inputs.num_logit_rows:  # not the context's own
            self.contexts.add(inputs.prefix_len)
            is_first = self.rows[-1] != rows
            is_disturbed = len(self.rows) % 7 == 0
            self.now += 1e-3 * (self._times[rows] + 0.5 * is_first + 2.0 * is_disturbed)
            self.rows.append(rows)
        return self._forward(inputs)


def test_every_width_gets_its_undisturbed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = runner_of()
    times = {1: 1.0, 2: 1.25, 5: 1.5, 8: 3.0}
    passes = Passes(runner, monkeypatch, times)
    pace = measure_pace(runner, list(times), context=20, budget_s=1e9)
    assert {rows: 1e3 * seconds for rows, seconds in pace.steps} == pytest.approx(times)
    assert passes.contexts == {20}


@pytest.mark.parametrize("capacity", [8, 40, 128])
def test_the_cache_is_empty_afterwards_and_its_room_is_enough(capacity: int) -> None:
    runner = runner_of(capacity)
    runner.sync([1, 2, 3])
    pace = measure_pace(runner, range(1, 9), budget_s=0.0)
    assert [rows for rows, _ in pace.steps] == list(range(1, 9))
    assert (runner.cached_ids, runner.cache.committed_len, runner.cache.num_tree) == ([], 0, 0)


@pytest.mark.parametrize(
    ("times", "capacity", "steps"),
    [
        ({64: 90.0, 256: 95.0}, 300, {64: 90.0, 256: 95.0}),
        ({64: 110.0, 256: 400.0}, 300, {64: 110.0}),
        ({64: 90.0, 100: 95.0}, 100, {64: 90.0, 100: 95.0}),
        ({40: 9.0}, 40, {40: 9.0}),
    ],
    ids=["wide passes are quick", "they are not", "a short cache", "a shorter one"],
)
def test_reading_is_measured_in_passes_as_wide_as_prompts(
    monkeypatch: pytest.MonkeyPatch, times: dict[int, float], capacity: int, steps: dict[int, float]
) -> None:
    """The rate of the narrow passes that draft is many times too slow on a GPU: a draft would never read a prompt."""
    runner = runner_of(capacity)
    passes = Passes(runner, monkeypatch, times)
    pace = measure_reading(runner)
    assert {rows: 1e3 * seconds for rows, seconds in pace.steps} == pytest.approx(steps)
    assert (passes.contexts, runner.cached_ids) == ({0}, [])


class SkippingPasses:
    """Passes that take what their sublayers do, attention longer by what is before it, and now and then disturbed."""

    rest_s = 0.5  # attention_s without any text
    attention_s = 0.125
    slope_s = 0.0005
    mlp_s = 0.25

    def __init__(self, runner: Runner, monkeypatch: pytest.MonkeyPatch, disturbance_s: float = 2.0) -> None:
        self.now = 0.0
        self.num_passes = 0
        self.contexts: set[int] = set()
        self._runner = runner
        self._forward = runner.forward
        self._disturbance_s = disturbance_s
        monkeypatch.setattr(pass_times, "perf_counter", lambda: self.now)
        monkeypatch.setattr(runner, "forward", self.forward)

    def seconds(self, context: int, num_attention: int, num_mlp: int) -> float:
        return self.rest_s + num_attention * (self.attention_s + self.slope_s * context) + num_mlp * self.mlp_s

    def forward(self, inputs: ForwardInput) -> ForwardOutput:
        assert len(inputs.token_ids) == 1
        self.num_passes += 1
        self.contexts.add(inputs.prefix_len)
        spec = self._runner.spec
        run = {*all_sublayers(spec.num_layers)} - inputs.skipped - absent_sublayers(spec)
        num_attention = sum(kind == ATTENTION for _, kind in run)
        num_mlp = len(run) - num_attention
        self.now += self.seconds(inputs.prefix_len, num_attention, num_mlp)
        self.now += self._disturbance_s * (self.num_passes % 7 == 0)
        return self._forward(inputs)


def assert_recovered(costs: SkipCosts, passes: SkippingPasses, context: int) -> None:
    assert costs.context == context
    assert costs.num_layers == SPEC.num_layers
    assert costs.mlp_s == pytest.approx(passes.mlp_s)
    assert costs.attention_s == pytest.approx(passes.attention_s + passes.slope_s * context)
    assert costs.attention_slope_s == pytest.approx(passes.slope_s)
    for place, num_attention, num_mlp in ((0, 2, 2), (context, 1, 0), (100, 0, 2), (250, 2, 1)):
        skipped_s = costs.draft_s(SPEC.num_layers - num_attention, SPEC.num_layers - num_mlp, place)
        assert skipped_s == pytest.approx(passes.seconds(place, num_attention, num_mlp))


@pytest.mark.parametrize("is_shared", [False, True], ids=["a runner", "a shared cache"])
@pytest.mark.parametrize(("capacity", "contexts"), [(2000, {64, 1024}), (301, {64, 300}), (101, {50, 100})])
def test_what_sublayers_take_is_found_and_how_it_grows_with_the_text(
    capacity: int, contexts: set[int], is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = runner_of(capacity)
    passes = SkippingPasses(owner, monkeypatch)
    runner = SharedCacheRunner(owner) if is_shared else owner
    whole_s = passes.seconds(min(contexts), SPEC.num_layers, SPEC.num_layers)
    whole = Pace(steps=((1, whole_s), (4, 2 * whole_s)))
    costs = measure_skip_costs(runner, whole, budget_s=1e9)
    assert passes.contexts == contexts
    assert costs.whole == whole
    assert_recovered(costs, passes, min(contexts))


def test_what_layers_lack_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = plain_spec(num_layers=5, mlp_only=(1, 2), mixer_only=(0, 3))
    runner = tiny_runner(spec, random_weights(spec, torch.Generator().manual_seed(0)), capacity=301)
    passes = SkippingPasses(runner, monkeypatch)
    whole_s = passes.seconds(64, 3, 3)
    costs = measure_skip_costs(runner, Pace(steps=((1, whole_s),)), budget_s=1e9)
    assert costs.absent == {(0, MLP), (1, ATTENTION), (2, ATTENTION), (3, MLP)}
    assert costs.mlp_s == pytest.approx(passes.mlp_s)
    assert costs.draft_s(1, 2, 200) == pytest.approx(passes.seconds(200, 2, 1))


def test_a_stand_in_fills_the_cache_whatever_was_in_it() -> None:
    cache = runner_of(16).cache
    cache.reserve(3)
    for num_tokens in (7, 0, 16, 2):
        stand_in(cache, num_tokens)
        assert (cache.committed_len, cache.num_tree) == (num_tokens, 0)
