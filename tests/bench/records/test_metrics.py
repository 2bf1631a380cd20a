"""Every number against one worked out by hand."""

from dataclasses import replace

import pytest

from forerun_lab.bench.records import metrics
from forerun_lab.bench.records.answers import Match, Record, RoundColumns, Turn
from forerun_lab.bench.records.metrics import TimeShares

# Three rounds: 1, 3 and 2 tokens at 0.5, 0.8 and 1.0 s; a stop cut the last token off.
ROUNDS = RoundColumns(
    num_drafted=(0, 4, 4),
    num_verified=(1, 5, 5),
    num_accepted=(0, 2, 1),
    draft_s=(7.0, 0.1, 0.05),
    verify_s=(0.02, 0.15, 0.1),
    wait_s=(6.0, 0.05, 0.0),
    was_hit=(False, True, False),
)
TURN = Turn(text="x", num_new_tokens=5, wall_s=1.25, emitted=(1, 3, 2), emitted_at_s=(0.5, 0.8, 1.0), rounds=ROUNDS)
UNTIMED = Turn(text="x", num_new_tokens=30, wall_s=2.0)


def record(*turns: Turn, question_id: int = 1, repeat: int = 0) -> Record:
    return Record(
        question_id=question_id, category="", contestant="c", dataset="d", temperature=0.0, turns=turns, repeat=repeat
    )


def lasting(seconds: float, **names: int) -> Record:
    """Eleven tokens, ten of them in so many seconds."""
    return record(
        Turn(text="", num_new_tokens=11, wall_s=seconds + 1, emitted=(1, 10), emitted_at_s=(1, 1 + seconds)), **names
    )


def test_speed_with_prefill_is_tokens_over_wall_time_of_all_turns() -> None:
    assert metrics.whole_tokens_per_s(record(TURN, UNTIMED)) == pytest.approx(35 / 3.25)
    assert metrics.whole_tokens_per_s(record()) is None


def test_a_prompt_has_the_median_speed_of_its_repeats() -> None:
    records = [lasting(1.0), lasting(2.0, repeat=1), lasting(10.0, repeat=2), lasting(5.0, question_id=2)]
    assert metrics.prompt_speeds(records, metrics.decode_tokens_per_s) == {("d", 1): 5.0, ("d", 2): 2.0}


def test_latency_percentiles_count_tokens_not_arrivals() -> None:
    found = metrics.latency([record(TURN)])
    assert found.first_token_s == pytest.approx(0.5)
    assert found.round_s == pytest.approx(0.25)
    assert found.token_p50_s == pytest.approx(0.1)  # three of four tokens took this long
    assert found.token_p95_s == found.token_p99_s == pytest.approx(0.2)
    assert len(found.token_curve_s) == len(metrics.CURVE_SHARES)
    assert list(found.token_curve_s) == sorted(found.token_curve_s)


def test_nothing_is_made_up_where_times_are_unknown() -> None:
    found = metrics.latency([record(UNTIMED)])
    assert (found.first_token_s, found.token_p95_s, found.round_s, found.token_curve_s) == (None, None, None, ())
    assert metrics.time_shares([record(UNTIMED)]) is None
    assert metrics.exactness([record(UNTIMED)]) is None
    drafting = metrics.drafting([record(UNTIMED)])
    assert (drafting.num_rounds, drafting.tokens_per_round, drafting.hit_rate) == (0, None, None)


def test_rounds_are_counted_with_and_without_the_bonus_token() -> None:
    found = metrics.drafting([record(TURN)])
    assert found.num_rounds == 3
    assert found.tokens_per_round == 2.0
    assert found.accepted_per_round == 1.0
    assert found.drafted_per_round == pytest.approx(8 / 3)
    assert found.acceptance_rate == pytest.approx(3 / 8)
    assert found.hit_rate == pytest.approx(1 / 3)
    assert found.accepted_counts == (1, 1, 1)


def test_acceptance_by_depth_asks_rounds_with_a_proposal_only() -> None:
    found = metrics.drafting([record(TURN)])
    assert found.reached == (1.0, 0.5)
    assert found.kept == (1.0, 0.5)


def test_time_shares_leave_out_the_round_of_the_prefill_and_sum_to_one() -> None:
    found = metrics.time_shares([record(TURN)])
    assert isinstance(found, TimeShares)
    assert (found.draft, found.wait, found.verify) == pytest.approx((0.2, 0.1, 0.5))
    assert found.draft + found.wait + found.verify + found.other == pytest.approx(1.0)


def test_the_floor_is_compared_with_passes_of_one_row() -> None:
    assert metrics.one_row_verify_s([record(TURN)]) == pytest.approx(0.02)


def test_texts_are_same_near_ties_or_different() -> None:
    matches = [
        None,
        Match(first_difference=None),
        Match(first_difference=7, is_near_tie=True),
        Match(first_difference=3),
    ]
    found = metrics.exactness([record(replace(UNTIMED, match=match)) for match in matches])
    assert found is not None
    assert (found.num_compared, found.num_same, found.num_near_tie, found.num_different) == (3, 1, 1, 1)
    assert found.first_difference == 3
