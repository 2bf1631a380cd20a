"""Who is asked what, in which order, and what is compared."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from forerun import SamplingParams
from forerun_lab.bench.records.answers import Match, Turn
from forerun_lab.bench.run import interleaved as module
from forerun_lab.bench.run.entrants import NONE
from forerun_lab.bench.run.interleaved import WARM_UP_TOKENS, warm_up
from tests.bench.players import (
    NUM_TOKENS,
    TEMPLATE,
    PlainContestant,
    question,
    records_in,
    same,
    stage_of,
    with_template,
    write_wrong,
)

TWO_SETS = {"code": (question(0), question(1), question(2)), "more": (question(7), question(8))}


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.0)


@pytest.fixture(scope="module")
def none() -> Iterator[PlainContestant]:
    contestant = PlainContestant()
    yield contestant
    contestant.engine.close()


def test_a_question_goes_to_everybody_before_the_next_one(none: PlainContestant, tmp_path: Path) -> None:
    stage = stage_of(none, questions=TWO_SETS, script=dict.fromkeys("abc", same), changes={"repeats": 2})
    calls = stage.play(tmp_path / "run")
    assert [call.name for call in calls if call.name == NONE] == [NONE] * 10
    groups = [calls[start : start + 4] for start in range(0, len(calls), 4)]
    # The data sets take turns, the longer one goes on alone, and all is repeated after all was asked.
    order = [("code", 0), ("more", 0), ("code", 1), ("more", 1), ("code", 2)]
    prompts = [tuple(stage.reader.prompt_after(TWO_SETS[name][place], ())) for name, place in order]
    assert [group[0].prompt_ids for group in groups] == prompts * 2
    for group in groups:
        assert all(replace(call, name=NONE) == group[0] for call in group), "everybody is asked the same"
    # none is first; the others move on by one with each question, and with each repeat.
    orders = {0: [NONE, *"abc"], 1: [NONE, *"bca"], 2: [NONE, *"cab"]}
    numbers = [number + repeat for repeat in (0, 1) for _, number in order]
    assert [[call.name for call in group] for group in groups] == [orders[number % 3] for number in numbers]


def test_tasks_can_follow_each_other(none: PlainContestant, tmp_path: Path) -> None:
    stage = stage_of(none, questions=TWO_SETS, changes={"task_after_task": True})
    calls = [call for call in stage.play(tmp_path / "run") if call.name == NONE]
    order = [("code", 0), ("code", 1), ("code", 2), ("more", 0), ("more", 1)]
    assert [call.prompt_ids for call in calls] == [
        tuple(stage.reader.prompt_after(TWO_SETS[name][place], ())) for name, place in order
    ]


def test_repeats_and_contestants_share_a_seed_and_questions_do_not(none: PlainContestant, tmp_path: Path) -> None:
    stage = stage_of(none, changes={"repeats": 2, "temperatures": (1.0,), "seed": 40})
    assert [call.params.seed for call in stage.play(tmp_path / "run")] == [40] * 3 + [41] * 3 + [40] * 3 + [41] * 3
    first, _, again, _ = records_in(tmp_path / "run")["code/a-temperature-1.jsonl"]
    assert (first.seed, first.turns[0].token_ids) == (40, again.turns[0].token_ids)


def test_everybody_forgets_before_each_question_and_after_the_warm_up(none: PlainContestant, tmp_path: Path) -> None:
    stage = stage_of(none)
    first = len(none.calls)
    stage.play(tmp_path / "run")
    assert [contestant.num_forgotten for contestant in stage.opened] == [1 + 2, 1 + 2]
    assert [call.name for call in none.calls[first : first + 4]] == [NONE, "a", "b", NONE]
    assert [call.params.ignore_eos for call in none.calls[first : first + 4]] == [True, True, True, False]


@pytest.mark.parametrize(("num_new", "expected"), [(2, 2), (100, WARM_UP_TOKENS)])
def test_a_warm_up_chooses_as_the_run_does_and_needs_no_more_room(num_new: int, expected: int) -> None:
    asked: list[SamplingParams] = []

    class Listener:
        name = "listener"

        def write(self, prompt_ids: object, params: SamplingParams) -> Turn:
            asked.append(params)
            return Turn(text="", num_new_tokens=1, wall_s=1.0)

        def forget(self) -> None:
            asked.append(SamplingParams())

        def close(self) -> None: ...

    warm_up(Listener(), [1], SamplingParams(temperature=0.7, seed=3, max_new_tokens=num_new))
    warm, forgotten = asked
    assert warm == SamplingParams(temperature=0.7, seed=3, max_new_tokens=expected, ignore_eos=True)
    assert forgotten == SamplingParams()


@pytest.mark.parametrize("is_chat", [False, True], ids=["text", "chat"])
def test_a_second_turn_goes_on_with_what_none_answered(is_chat: bool, none: PlainContestant, tmp_path: Path) -> None:
    if is_chat:
        none = PlainContestant(str(with_template(tmp_path / "chat")))
    said = question(0, "def f(x):\n    return", "def g(x):\n", "def h(x):\n")
    stage = stage_of(none, questions={"code": (said,)}, script={"wrong": write_wrong})
    calls = stage.play(tmp_path / "run")
    assert [call.name for call in calls] == [NONE] * 3 + ["wrong"] * 3
    plain = [turn.text for turn in records_in(tmp_path / "run")["code/none-temperature-0.jsonl"][0].turns]
    wrong = [turn.text for turn in records_in(tmp_path / "run")["code/wrong-temperature-0.jsonl"][0].turns]
    assert all(plain)
    assert plain[0] != wrong[0]
    tokenizer = none.engine.tokenizer
    text = tokenizer.decode(calls[2].prompt_ids)
    if is_chat:
        assert TEMPLATE.startswith("{% for m")
        assert text == (
            f"<user>{said.turns[0]}\n<assistant>{plain[0]}\n<user>{said.turns[1]}\n<assistant>{plain[1]}\n"
            f"<user>{said.turns[2]}\n<assistant>"
        )
    else:
        assert text == f"{said.turns[0]}{plain[0]}\n{said.turns[1]}{plain[1]}\n{said.turns[2]}"
    assert [call.prompt_ids for call in calls[:3]] == [call.prompt_ids for call in calls[3:]]
    # Each turn is compared on its own, after the prompt it was given.
    (record,) = records_in(tmp_path / "run")["code/wrong-temperature-0.jsonl"]
    for call, turn in zip(calls, record.turns, strict=False):
        margin = none.engine.margin_after([*call.prompt_ids, turn.token_ids[0]], call.params)
        assert turn.match is not None
        assert (turn.match.first_difference, turn.match.margin) == (1, pytest.approx(margin, abs=1e-3))


def end_early(turn: Turn) -> Turn:
    return replace(turn, text="", token_ids=turn.token_ids[:-1], num_new_tokens=turn.num_new_tokens - 1)


def test_every_answer_is_compared_and_a_wrong_token_is_found(none: PlainContestant, tmp_path: Path) -> None:
    script = {"right": same, "wrong": write_wrong, "short": end_early}
    stage_of(none, script=script, changes={"temperatures": (0.0, 1.0)}).play(tmp_path / "run")
    for name, records in records_in(tmp_path / "run").items():
        matches = [turn.match for record in records for turn in record.turns]
        assert len(matches) == 2
        for match in matches:
            assert match is not None
            if "wrong" in name:
                assert (match.first_difference, match.is_near_tie) == (1, False)
                assert match.margin is not None
                assert match.margin > none.engine.near_tie(SamplingParams())
            else:
                last = NUM_TOKENS - 1 if "short" in name else None
                assert match == Match(first_difference=last), "that one text goes on is no question of rounding"
