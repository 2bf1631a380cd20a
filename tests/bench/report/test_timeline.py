"""One answer as it came: which prompt is shown, and who wrote each token."""

from dataclasses import replace

import pytest

from forerun.bench.records.answers import Record, RoundColumns, Turn
from forerun.bench.report.timeline import TOKEN_TEXTS, choose_timeline, draw_lane, draw_text


def answer(
    name: str, question_id: int, *, seconds: float = 1.0, temperature: float = 0.0, texts: bool = False
) -> Record:
    """Rounds of 1, 3 and 2 tokens of which the last is cut off, in so many seconds after the first."""
    times = (0.5, 0.5 + seconds / 2, 0.5 + seconds)
    rounds = RoundColumns(
        num_drafted=(4, 4, 4), num_verified=(5, 5, 5), num_accepted=(0, 2, 1),
        draft_s=(0, 0, 0), verify_s=(0, 0, 0), wait_s=(0, 0, 0), was_hit=(False, False, False),
    )  # fmt: skip
    turn = Turn(text="", num_new_tokens=5, wall_s=times[-1], emitted=(1, 3, 2), emitted_at_s=times, rounds=rounds)
    extra: dict[str, object] = {TOKEN_TEXTS: [[" a", "<b>", " c", " d", " e"]]} if texts else {}
    return Record(
        question_id=question_id,
        category="",
        contestant=name,
        dataset="d",
        temperature=temperature,
        turns=(turn,),
        extra=extra,
    )


def test_cells_say_who_wrote_each_token_and_when() -> None:
    timeline = choose_timeline([answer("x", 1)], "x", None)
    assert timeline is not None
    (lane,) = timeline.lanes
    assert [cell.is_drafted for cell in lane.cells] == [False, True, True, False, True]
    assert [cell.round_number for cell in lane.cells] == [0, 1, 1, 1, 2]
    assert [cell.end_s for cell in lane.cells] == pytest.approx([0.5, 0.5 + 1 / 6, 0.5 + 2 / 6, 1.0, 1.5])
    assert lane.num_drafted == 3


def test_the_prompt_is_the_one_of_median_gain_and_not_the_best() -> None:
    records = [answer("none", place) for place in range(5)]
    records += [answer("x", place, seconds=seconds) for place, seconds in enumerate((0.2, 0.9, 0.5, 0.6, 0.1))]
    timeline = choose_timeline(records, "x", "none")
    assert timeline is not None
    assert timeline.question_id == 2
    assert [lane.contestant for lane in timeline.lanes] == ["x", "none"]


def test_only_the_lowest_temperature_and_prompts_of_both_count() -> None:
    records = [answer("x", 1, temperature=1.0), answer("x", 2), answer("none", 1, temperature=1.0), answer("none", 3)]
    assert choose_timeline(records, "x", "none") is None
    records.append(answer("none", 2))
    timeline = choose_timeline(records, "x", "none")
    assert timeline is not None
    assert timeline.question_id == 2


def test_answers_without_times_give_no_timeline() -> None:
    record = answer("x", 1)
    blind = replace(record, turns=tuple(replace(turn, emitted_at_s=()) for turn in record.turns))
    assert choose_timeline([blind], "x", None) is None


def test_a_lane_shows_every_token_and_its_text_only_as_text() -> None:
    timeline = choose_timeline([answer("x", 1, texts=True)], "x", None)
    assert timeline is not None
    drawn = draw_lane(timeline.lanes[0], 2.0)
    assert (drawn.count('class="drafted"'), drawn.count('class="target"')) == (3, 2)
    assert "<b>" not in drawn
    assert draw_text(timeline.lanes[0]) == " a<mark>&lt;b&gt;</mark><mark> c</mark> d<mark> e</mark>"


def test_unknown_token_texts_leave_the_text_out() -> None:
    timeline = choose_timeline([answer("x", 1)], "x", None)
    assert timeline is not None
    assert draw_text(timeline.lanes[0]) == ""
