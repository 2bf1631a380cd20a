"""Who works on which cores."""

import os
from pathlib import Path

import pytest

from forerun import EngineConfig, NoDrafter, Parallel
from forerun.core.pace import Pace
from forerun.core.profile import Profile
from forerun.engine import placement
from forerun.engine.placement import CorePlacement

needs_affinity = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no core affinity")


def pace(milliseconds: float) -> Pace:
    return Pace(steps=((64, milliseconds * 1e-3),))


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "own_cores", lambda: list(range(8)))


def profile_file(folder: Path, target_ms: float, draft_ms: dict[int, float]) -> str:
    """A target that takes the same time on any number of cores, so that the draft's gain alone decides."""
    path = folder / "profile.json"
    Profile(
        source="measured",
        unit="core",
        target={units: pace(target_ms) for units in range(1, 9)},
        draft={units: pace(time) for units, time in draft_ms.items()},
    ).write(path)
    return str(path)


@pytest.mark.usefixtures("eight_cores")
def test_target_and_draft_share_no_core_and_leave_none() -> None:
    found = CorePlacement.of(EngineConfig(drafter=Parallel(num_threads=3)))
    every = tuple(range(8))
    assert found == CorePlacement(target=(0, 1, 2, 3, 4), draft=(5, 6, 7), draft_threads=3, every=every)


@pytest.mark.usefixtures("eight_cores")
def test_the_calibrated_table_chooses_how_many_cores_the_draft_gets(tmp_path: Path) -> None:
    slow_alone = profile_file(tmp_path, 10.0, {1: 9.0, 2: 5.0, 3: 2.0, 4: 2.0})
    assert CorePlacement.of(EngineConfig(drafter=Parallel(), profile=slow_alone)).draft == (5, 6, 7)
    asked = CorePlacement.of(EngineConfig(drafter=Parallel(num_threads=2), profile=slow_alone))
    assert asked.draft == (6, 7), "what the user says counts"


@pytest.mark.usefixtures("eight_cores")
def test_a_table_without_any_split_leaves_one_core(tmp_path: Path) -> None:
    config = EngineConfig(drafter=Parallel(), profile=profile_file(tmp_path, 10.0, {6: 1.0}))
    assert CorePlacement.of(config).draft == (7,)


def test_a_serial_drafter_and_one_elsewhere_keep_nobody_from_any_core() -> None:
    for drafter in (NoDrafter(), Parallel(address="127.0.0.1:1"), Parallel(device="cuda:0")):
        assert CorePlacement.of(EngineConfig(drafter=drafter)) == CorePlacement()


@needs_affinity
def test_the_thread_stays_on_the_targets_cores_for_a_while_only() -> None:
    before = os.sched_getaffinity(0)
    one = (min(before),)
    assert CorePlacement(target=one).run(lambda: os.sched_getaffinity(0)) == set(one)
    assert os.sched_getaffinity(0) == before
    with pytest.raises(KeyError):
        CorePlacement(target=one).run(lambda: {}["nothing"])
    assert os.sched_getaffinity(0) == before
