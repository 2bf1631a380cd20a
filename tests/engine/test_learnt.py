"""What an engine learns is kept for the next start, and can cost speed but never a token."""

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from forerun import Automatic, DraftModel, Engine, EngineConfig, NoDrafter, SamplingParams
from forerun.checkpoints.open import builtin_folder
from forerun.core.drafter_config import BUILTIN_DRAFT
from forerun.core.pace import Pace
from forerun.decoding.drafters import Drafters
from forerun.drafting.token_recycling import TokenRecyclingDrafter
from forerun.engine import learnt as module
from forerun.engine.learnt import MAX_BYTES, Learnt, LearntFile, read_learnt
from forerun.model.runner import Runner

ABOUT = {"model": "m", "threads": 2}
GOOD: dict[str, Any] = {
    "version": 2,
    "about": ABOUT,
    "context_s": 1e-7,
    "paces": [[[1, 0.005], [8, 0.006]], [[1, 0.005]]],
    "speeds": {"greedy": {"prompt_lookup": 1.3}, "below 1": {}},
    "saved_s": {"recycling": 0.02},
}
PROMPT = "def read_lines(path):\n    with open(path) as file:\n"


def open_file(tmp_path: Path, content: object) -> LearntFile:
    """What an engine would read, of a file with this content."""
    LearntFile(str(tmp_path), ABOUT).keep(Drafters())
    (path,) = tmp_path.glob("*.json")
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return LearntFile(str(tmp_path), ABOUT)


def test_a_good_file_is_believed(tmp_path: Path) -> None:
    learnt = open_file(tmp_path, GOOD).learnt
    assert learnt.context_s == 1e-7
    assert {rows: pace.step_s(1) for rows, pace in learnt.paces.items()} == {(1, 8): 0.005, (1,): 0.005}
    assert learnt.speeds["greedy"] == {"prompt_lookup": 1.3}
    assert learnt.saved_s == {"recycling": 0.02}


def test_a_file_of_an_older_version_is_left_aside_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="forerun"):
        learnt = open_file(tmp_path, GOOD | {"version": 1}).learnt
    assert (learnt.paces, learnt.speeds, learnt.saved_s) == ({}, {}, {})
    assert not caplog.records


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "null", "[" * 5000, '{"version": 1', "\0" * 100, " " * (MAX_BYTES + 1),
        {}, GOOD | {"version": 3}, GOOD | {"version": 0}, GOOD | {"version": True},
        GOOD | {"about": {}}, GOOD | {"about": None},
        GOOD | {"context_s": -1.0}, GOOD | {"context_s": "x"}, GOOD | {"context_s": 1e300},
        GOOD | {"paces": None}, GOOD | {"paces": {}}, GOOD | {"paces": [1]}, GOOD | {"paces": [[]]},
        GOOD | {"paces": [[[1]]]}, GOOD | {"paces": [[[1, "a"]]]}, GOOD | {"paces": [[[0, 0.1]]]},
        GOOD | {"paces": [[[8, 0.1], [1, 0.1]]]}, GOOD | {"paces": [[[1, -0.1]]]}, GOOD | {"paces": [[[True, 0.1]]]},
        GOOD | {"paces": [[[1, 1e999]]]}, GOOD | {"speeds": []}, GOOD | {"speeds": {"greedy": 3}},
        GOOD | {"speeds": {"greedy": {"prompt_lookup": 0}}}, GOOD | {"speeds": {"greedy": {"prompt_lookup": "fast"}}},
        GOOD | {"speeds": {"greedy": {"prompt_lookup": 1e9}}}, GOOD | {"speeds": {"greedy": {"prompt_lookup": True}}},
        GOOD | {"saved_s": 3}, GOOD | {"saved_s": {"recycling": -1.0}}, GOOD | {"saved_s": {"recycling": "x"}},
    ],
    ids=lambda content: str(content)[-60:],
)  # fmt: skip
def test_a_damaged_or_foreign_file_is_left_aside_with_one_line(
    content: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="forerun"):
        learnt = open_file(tmp_path, content).learnt
    assert (learnt.paces, learnt.context_s, learnt.speeds) == ({}, None, {})
    assert len(caplog.records) == 1
    assert "\n" not in caplog.records[0].getMessage()


def test_a_folder_that_must_not_be_read_is_left_aside_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "exists", refuse)
    assert read_learnt(tmp_path / "learnt.json", {}) == Learnt()
    assert caplog.text.count("are ignored, and made again") == 1


def test_the_next_start_measures_nothing_and_writes_the_same_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(max_new_tokens=60, ignore_eos=True)
    with Engine(EngineConfig(drafter=NoDrafter())) as plain:
        expected = plain.generate(PROMPT, params).token_ids
    config = EngineConfig(drafter=Automatic(learnt=str(tmp_path)), measures_speedup=True)
    with Engine(config) as engine:
        for _ in range(4):  # a drafter's speed is known after a few guesses
            assert engine.generate(PROMPT, params).token_ids == expected
    (path,) = tmp_path.glob("*.json")
    kept = json.loads(path.read_text())
    assert set(kept["speeds"]) == {"greedy"}
    assert len(kept["paces"]) >= 2

    measured: list[object] = []
    monkeypatch.setattr(module, "DRIFT", 1e9)  # this machine may be busy
    monkeypatch.setattr(module, "context_cost", measured.append)
    original = module.measure_pace

    def note_and_measure(runner: Runner, widths: Sequence[int], **rest: float) -> Pace:
        measured.append(widths)
        return original(runner, widths, **rest)

    monkeypatch.setattr(module, "measure_pace", note_and_measure)
    with Engine(config) as engine:
        result = engine.generate(PROMPT, params)
    assert result.token_ids == expected
    assert sum(result.stats.rounds_by.values()) <= result.stats.num_rounds
    assert measured == [(1,)], "one short look whether the machine is as fast as it was"


def test_what_recycling_has_seen_is_kept_and_a_damaged_table_is_left_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    params = SamplingParams(max_new_tokens=40, ignore_eos=True)
    config = EngineConfig(drafter=Automatic(learnt=str(tmp_path)))
    with Engine(config) as engine:
        num_fresh = num_known(engine)  # of the few tokens of the warm-up
        expected = engine.generate(PROMPT, params).token_ids
        num_seen = num_known(engine)
    (path,) = tmp_path.glob("*.drafter")
    with Engine(config) as engine:
        assert num_known(engine) >= num_seen > num_fresh
        assert engine.generate(PROMPT, params).token_ids == expected
    path.write_bytes(path.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING, logger="forerun"), Engine(config) as engine:
        assert num_known(engine) < num_seen
        assert engine.generate(PROMPT, params).token_ids == expected
    assert len(caplog.records) == 1


def num_known(engine: Engine) -> int:
    """Tokens whose successors are known."""
    recycling = engine.drafting.held["recycling"]
    assert isinstance(recycling, TokenRecyclingDrafter)
    return recycling.table.num_known


def test_a_draft_that_was_trained_further_is_measured_anew(tmp_path: Path) -> None:
    draft = copytree(builtin_folder(BUILTIN_DRAFT), tmp_path / "draft")
    learnt = tmp_path / "learnt"
    drafter = Automatic(draft=DraftModel(model=str(draft)), learnt=str(learnt))
    for num_files in (1, 1, 2):
        if num_files == 2:
            tensors = load_file(draft / "model.safetensors")
            save_file({name: 0.5 * tensor for name, tensor in tensors.items()}, draft / "model.safetensors")
        with Engine(EngineConfig(drafter=drafter, num_threads=1, max_length=64)):
            pass
        assert len(list(learnt.glob("*.json"))) == num_files


def test_what_cannot_be_saved_names_the_variable_and_leftovers_of_killed_writers_are_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = tmp_path / ".a.json.0123abcd.part"
    new = tmp_path / ".b.json.0123abcd.part"
    for part in (old, new):
        part.write_text("")
    os.utime(old, (0, 0))
    LearntFile(str(tmp_path), ABOUT).keep(Drafters())
    assert (old.exists(), new.exists()) == (False, True)
    (tmp_path / "file").write_text("")
    LearntFile(str(tmp_path / "file"), ABOUT).keep(Drafters())
    assert len(caplog.messages) == 1
    assert "FORERUN_CACHE" in caplog.messages[0]
