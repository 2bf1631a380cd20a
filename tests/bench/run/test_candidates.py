"""Contestants by name, with settings that are chosen once and remembered."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forerun import ConfigError, EngineConfig, PromptLookup
from forerun.checkpoints.open import open_source
from forerun_lab.bench.peers.catalogue import PEERS, PeerPlan
from forerun_lab.bench.records.run_folder import RunFolder, read_run
from forerun_lab.bench.run import candidates as module
from forerun_lab.bench.run.candidates import Candidates
from forerun_lab.bench.run.drafters import DrafterContestant
from forerun_lab.bench.run.entrants import GRIDS, Entrant, grid_of
from tests.bench.players import plan_of, question

NAME = "prompt_lookup"
ENTRANT = Entrant(label=NAME, name=NAME, config=EngineConfig(drafter=PromptLookup(), max_length=128, num_threads=1))
Make = Callable[..., Candidates]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three settings, the last of which cannot be opened."""
    monkeypatch.setitem(GRIDS, NAME, ({}, {"verify_width": 2}, {"verify_width": 0}))  # type: ignore[arg-type]
    monkeypatch.setattr(module, "PAUSE_S", 0.0)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """A field over a folder, which is opened anew for each."""
    folders: list[RunFolder] = []

    def call(*, tune: bool = True, prompts: Any = ([5, 6, 7], [8, 9])) -> Candidates:
        while folders:
            folders.pop().close()
        plan = plan_of({"code": [question(0)]}, (NAME,), peers=("llama_server",), tune=tune)
        folders.append(RunFolder(tmp_path / "run", plan, {}))
        return Candidates(
            plan=plan,
            folder=folders[0],
            entrants={NAME: ENTRANT},
            peers=PeerPlan(target=str(open_source("builtin").folder), dtype="float32", num_threads=1, max_length=128),
            tuning_prompts=prompts,
        )

    yield call
    while folders:
        folders.pop().close()


def opened_width(field: Candidates, temperature: float = 0.0) -> int:
    contestant = field.open(NAME, temperature)
    assert isinstance(contestant, DrafterContestant)
    width = contestant.engine.drafting.verify_width
    contestant.close()
    return width


def must_not(*arguments: object) -> None:
    raise AssertionError("tuned where nothing was to be tuned")


def test_the_best_settings_are_taken_and_all_that_were_tried_are_written_down(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLEARLY", 0.0)  # so that the times of this machine decide nothing
    field = make()
    width = opened_width(field)
    assert width in (2, 16)
    entry = read_run(tmp_path / "run" / "run.json")["contestants"][NAME]
    assert entry["settings"] == {"0": {} if width == 16 else {"verify_width": 2}}
    tried = {str(trial["settings"]): trial for trial in entry["tried"]["0"]}
    assert len(tried) == 3
    assert tried[str({"verify_width": 0})]["trouble"] == "verify_width 0 must be >= 1"
    speeds = [trial["tokens_per_s"] for trial in tried.values() if trial["trouble"] is None]
    assert len(speeds) == 2
    assert min(speeds) > 0


def test_settings_are_chosen_once_and_for_each_temperature(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    field = make()
    tunes = list[float]()

    def tune(open_with: object, grid: Any, prompts: object, params: Any) -> list[module.Trial]:
        tunes.append(params.temperature)
        return [module.Trial(settings=grid[1])]

    monkeypatch.setattr(module, "tune", tune)
    assert [opened_width(field), opened_width(field), opened_width(field, 1.0)] == [2, 2, 2]
    assert tunes == [0.0, 1.0]
    monkeypatch.setattr(module, "tune", must_not)
    assert opened_width(make()) == 2, "a run that is continued goes on with them"


def test_a_drafter_whose_shape_the_user_gave_is_not_tuned(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "tune", must_not)
    given = replace(ENTRANT, is_shaped=True)
    assert opened_width(replace(make(), entrants={NAME: given})) == 16


def test_a_grid_is_found_by_name_and_an_unknown_name_lists_the_known() -> None:
    assert grid_of("none") == ({},)
    assert grid_of("llama_server_draft") == PEERS["llama_server_draft"].grid
    with pytest.raises(ConfigError, match="name llama_server, with --llama-server FILE"):
        grid_of("llama_cpp")
    with pytest.raises(ConfigError, match=r"no contestant 'medusa': drafters are none, .*; peers transformers, "):
        grid_of("medusa")
