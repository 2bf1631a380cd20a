"""Who fails is left out; a run that is cut goes on where it was."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forerun_lab.bench.peers.messages import PeerError
from forerun_lab.bench.records.answers import Match, Turn
from forerun_lab.bench.records.run_folder import RunFolder, read_run
from forerun_lab.bench.run import interleaved as module
from forerun_lab.bench.run.entrants import NONE
from tests.bench.players import PlainContestant, keys_in, question, records_in, same, stage_of, write_wrong


class Cut(BaseException):
    """Ends a run at once, as a kill does."""


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.0)


@pytest.fixture(scope="module")
def none() -> Iterator[PlainContestant]:
    contestant = PlainContestant()
    yield contestant
    contestant.engine.close()


class Failing:
    """A contestant that answers so many times and then never again."""

    def __init__(self, num_answers: int) -> None:
        self.num_left = num_answers

    def __call__(self, turn: Turn) -> Turn:
        self.num_left -= 1
        if self.num_left < 0:
            raise PeerError("it broke")
        return turn


@pytest.mark.parametrize("num_answers", [0, 1, 3])
def test_who_fails_is_left_out_with_the_reason_and_the_others_go_on(
    none: PlainContestant, tmp_path: Path, num_answers: int
) -> None:
    stage = stage_of(none, script={"a": Failing(num_answers), "b": same}, changes={"repeats": 2})
    stage.play(tmp_path / "run")
    assert [contestant.is_closed for contestant in stage.opened] == [True, True]
    about = read_run(tmp_path / "run" / "run.json")["contestants"]
    assert (about["a"]["skipped"], about["a"]["skips"]) == ("it broke", {"0": "it broke"})
    assert about["b"]["skipped"] is None
    num_written = {name: len(records) for name, records in records_in(tmp_path / "run").items()}
    assert num_written["code/b-temperature-0.jsonl"] == num_written["code/none-temperature-0.jsonl"] == 4
    assert num_written.get("code/a-temperature-0.jsonl", 0) == max(num_answers - 1, 0)  # one answer is the warm-up
    num_calls = len(none.calls)
    stage_of(none, script={"a": same, "b": same}, changes={"repeats": 2}).play(tmp_path / "run")
    assert len(none.calls) == num_calls, "who was left out stays out, and for nobody else is anything missing"


def bytes_in(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.glob("*/*.jsonl")}


def test_a_finished_run_started_again_plays_nothing(none: PlainContestant, tmp_path: Path) -> None:
    stage_of(none).play(tmp_path / "run")
    before = bytes_in(tmp_path / "run")
    stage = stage_of(none)
    first = len(none.calls)
    assert stage.play(tmp_path / "run") == []
    assert (len(none.calls), stage.opened) == (first, []), "nobody was opened or warmed up"
    assert bytes_in(tmp_path / "run") == before


CHANGES = {"repeats": 2, "temperatures": (0.0, 1.0)}
NUM_ANSWERS = 2 * 2 * 2 * 3


@pytest.fixture(scope="module")
def whole(none: PlainContestant, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never cut."""
    path = tmp_path_factory.mktemp("whole") / "run"
    stage_of(none, changes=CHANGES).play(path)
    assert len(keys_in(path)) == NUM_ANSWERS
    return path


@pytest.mark.parametrize("num_written", range(0, NUM_ANSWERS, 5))
def test_a_run_cut_while_it_writes_goes_on_where_it_was(
    none: PlainContestant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path, num_written: int
) -> None:
    """A group has three answers, so that it is cut before, after and between their lines; one more line is torn."""
    num_left = num_written
    append = RunFolder.append

    def append_some(self: RunFolder, record: Any) -> None:
        nonlocal num_left
        if not num_left:
            raise Cut
        num_left -= 1
        append(self, record)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append", append_some)
        with pytest.raises(Cut):
            stage_of(none, changes=CHANGES).play(tmp_path / "run")
    cut = records_in(tmp_path / "run")
    for file in (tmp_path / "run").glob("*/*.jsonl"):
        file.write_bytes(file.read_bytes() + b'{"question_id": 1, "cat')
    stage_of(none, changes=CHANGES).play(tmp_path / "run")
    check_same(tmp_path / "run", whole)
    after = records_in(tmp_path / "run")
    assert all(after[name][: len(records)] == records for name, records in cut.items()), "what was there is still there"


def check_same(path: Path, whole: Path) -> None:
    assert keys_in(path) == keys_in(whole)
    written = records_in(path)
    expected = records_in(whole)
    for name, records in written.items():
        ids, expected_ids = (
            {(record.question_id, record.repeat): record.turns[0].token_ids for record in side}
            for side in (records, expected[name])
        )
        assert ids == expected_ids
        assert all(record.turns[0].match == Match(first_difference=None) for record in records)


def test_only_who_is_missing_is_asked_and_gets_the_prompts_of_before(none: PlainContestant, tmp_path: Path) -> None:
    said = {"code": (question(0, "def f(x):\n    return", "def g(x):\n"),)}
    whole = stage_of(none, questions=said, script={"a": same, "wrong": write_wrong}).play(tmp_path / "run")
    (tmp_path / "run" / "code" / "wrong-temperature-0.jsonl").write_bytes(b"")
    again = stage_of(none, questions=said, script={"a": same, "wrong": write_wrong})
    calls = again.play(tmp_path / "run")
    assert [call.name for call in calls] == ["wrong", "wrong"]
    assert [call.prompt_ids for call in calls] == [call.prompt_ids for call in whole if call.name == NONE]
    (record,) = records_in(tmp_path / "run")["code/wrong-temperature-0.jsonl"]
    assert [turn.match and turn.match.first_difference for turn in record.turns] == [1, 1]
