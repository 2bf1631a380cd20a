"""Calibration: a profile of this machine; and what an engine makes of the times of passes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from forerun.core.config import EngineConfig, SamplingParams
from forerun.core.drafter_config import DraftModel
from forerun.core.errors import ConfigError
from forerun.core.pace import Pace
from forerun.core.steps import StepStats
from forerun.drafting import draft_model
from forerun.engine import learnt
from forerun.engine.engine import Engine
from forerun.speculation.referee.costs import RoundCosts
from forerun_lab.planner import calibrate as calibration
from forerun_lab.planner.calibrate import DRAFT_ROWS, TARGET_ROWS, Ranks, calibrate
from forerun_lab.planner.plan import splits_of
from forerun_lab.planner.profile import Profile
from tests.marks import rest_slow
from tests.varied import NO_LOOKUP

PARAMS = SamplingParams(max_new_tokens=30, ignore_eos=True)
PROMPT = "the cat sat on the mat and the cat "
CHEAP = Pace(steps=((64, 1e-3),))
DEAR = Pace(steps=((1, 1e-3), (64, 1e3)))


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few repeats, and as many threads afterwards as before."""
    num_threads = torch.get_num_threads()
    monkeypatch.setattr(calibration, "BUDGET_S", 0.0)
    yield
    torch.set_num_threads(num_threads)


@pytest.mark.parametrize("threads", rest_slow([1, 2], 1))
def test_every_number_of_cores_and_every_overhead_is_measured(
    target: str, draft: str, tmp_path: Path, threads: int
) -> None:
    told: list[str] = []
    config = EngineConfig(target=target, dtype="float32", num_threads=threads, device="paced:target=9s")
    profile = calibrate(config, draft, told.append)
    assert (profile.source, profile.unit) == ("measured", "core")
    for paces, rows in ((profile.target, TARGET_ROWS), (profile.draft, DRAFT_ROWS)):
        assert list(paces) == list(range(1, threads + 1))
        assert all(tuple(step for step, _ in pace.steps) == rows for pace in paces.values())
    assert 0.0 <= profile.expansion_overhead_s < 1.0
    assert 0.0 <= profile.worker_expansion_overhead_s < 1.0
    assert profile.serial_overhead_s == profile.parallel_overhead_s < 1.0
    assert (profile.about["target"], profile.about["draft"], profile.about["device"]) == (target, draft, "cpu")
    assert len(told) == 2 * threads + 1
    profile.write(tmp_path / "profile.json")
    assert Profile.read(tmp_path / "profile.json") == profile


@pytest.mark.slow
def test_every_number_of_ranks_that_is_named_is_measured_with_real_ranks(target: str, draft: str) -> None:
    told: list[str] = []
    config = EngineConfig(target=target, dtype="float32", num_threads=3)
    profile = calibrate(config, draft, told.append, Ranks(target=(1, 2, 3), draft=(1, 2)))
    assert (profile.source, profile.unit) == ("measured", "rank")
    assert (list(profile.target), list(profile.draft)) == ([1, 2, 3], [1, 2])
    assert all(tuple(rows for rows, _ in pace.steps) == TARGET_ROWS for pace in profile.target.values())
    assert len(told) == 6
    assert [split.name for split in splits_of(profile, 3)] == ["3 shared", "2+1", "1+2"]


def test_a_number_of_ranks_is_at_least_one() -> None:
    with pytest.raises(ConfigError, match="--draft-ranks 0,2 must be numbers of at least 1"):
        Ranks(target=(1,), draft=(0, 2))


def test_some_of_the_ranks_may_run_on_other_hosts() -> None:
    ranks = Ranks(target=(1, 2, 4), remote=2, address="here:7000", draft_device="cuda:3")
    configs = [ranks.of_target(EngineConfig(), number) for number in ranks.target]
    assert [config.remote_ranks for config in configs] == [0, 1, 2]
    assert [config.rank_address for config in configs] == [None, "here:7000", "here:7000"]
    assert ranks.of_draft(EngineConfig(), "small", 2) == EngineConfig(target="small", target_ranks=2, device="cuda:3")


@pytest.fixture
def rounds_with(target: str, draft: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[Pace, Pace], list[StepStats]]:
    """The rounds of an adaptive engine that measures these times."""

    def play(of_target: Pace, of_draft: Pace) -> list[StepStats]:
        monkeypatch.setattr(learnt, "measure_pace", lambda *_, **__: of_target)
        monkeypatch.setattr(draft_model, "measure_pace", lambda *_, **__: of_draft)
        monkeypatch.setattr(RoundCosts, "measure", lambda self, num_rows, seconds, num_rounds=1: None)
        monkeypatch.setattr(RoundCosts, "knows_plain", True)
        config = EngineConfig(target=target, drafter=DraftModel(model=draft), dtype="float32", num_threads=1)
        with Engine(config, policies=NO_LOOKUP) as engine:
            return [step.stats for step in engine.stream(PROMPT, PARAMS)]

    return play


def test_an_engine_verifies_by_what_rows_cost(rounds_with: Callable[[Pace, Pace], list[StepStats]]) -> None:
    dear = rounds_with(DEAR, CHEAP)
    assert {step.num_verified for step in dear} == {1}, "a second row would take a quarter of an hour"
    free = rounds_with(Pace(steps=((64, 1e3),)), CHEAP)
    assert max(step.num_verified for step in free) == DraftModel().verify_width
