"""The referee: what it starts with, who is watched, what is kept, and what a round may cost."""

from collections.abc import Mapping, Sequence

import pytest

from forerun.core.pace import Pace
from forerun.speculation.referee.budget import ProposedTree
from forerun.speculation.referee.costs import RoundCosts, RunningMean
from forerun.speculation.referee.records import FEWEST, DraftRecord, ProposalMeans
from forerun.speculation.referee.referee import PLAIN_EVERY, TRIALS, DraftTurn, Referee
from forerun.speculation.tree import TokenTree
from tests.speculation.referee.market import FLAT, Market, Skill, always, totals

PACE = Pace(steps=((1, 1.0), (2, 1.1), (4, 1.2), (8, 1.4)))
NAMES = ("first", "second")


def chain(num_nodes: int) -> TokenTree:
    """A root and tokens 1, 2, 3 and so on."""
    tree = TokenTree(0)
    tree.add_chain(list(range(1, num_nodes + 1)), [0.0] * num_nodes)
    return tree


def play(
    referee: Referee, num_rounds: int, tokens: Mapping[str, int], proposal_s: float = 0.01, rows: int = 8
) -> list[DraftTurn]:
    """Rounds in which each drafter brings so many tokens, drafted or watched; return who had the turns."""
    turns = []
    for _ in range(num_rounds):
        turn = referee.turn
        turns.append(turn)
        if turn.watched is not None:
            referee.watch(ProposedTree(tree=chain(tokens[turn.watched] - 1)), proposal_s)
        num_rows = 1 if turn.drafter is None else min(rows, turn.max_rows)
        num_tokens = 1 if turn.drafter is None else min(tokens[turn.drafter], num_rows)
        round_s = PACE.step_s(num_rows)
        referee.measure(
            num_rows=num_rows, token_ids=range(1, num_tokens + 1), proposal_s=proposal_s if turn.drafter else 0.0,
            round_s=round_s,
        )  # fmt: skip
    return turns


def referee_of(names: Sequence[str] = NAMES, **rest: object) -> Referee:
    referee = Referee(dict.fromkeys(names, 8), known_costs(PACE), **rest)  # type: ignore[arg-type]
    referee.start_answer(0.0)
    return referee


def known_costs(pace: Pace) -> RoundCosts:
    """Those of a machine on which plain rounds were played."""
    costs = RoundCosts(pace)
    costs.measure(1, pace.step_s(1), 8)
    return costs


def test_each_is_tried_by_drafting_and_the_fastest_stays() -> None:
    referee = referee_of()
    turns = play(referee, 60, {"first": 2, "second": 4})
    assert [turn.drafter for turn in turns[:FEWEST]] == ["first"] * FEWEST
    assert {turn.drafter for turn in turns[2 * FEWEST :]} == {"second"}


def test_the_other_one_is_watched_and_taken_up_when_it_becomes_faster() -> None:
    referee = referee_of()
    play(referee, 60, {"first": 2, "second": 4})
    later = play(referee, 400, {"first": 8, "second": 4})
    assert any(turn.watched == "first" for turn in later)
    assert {turn.drafter for turn in later[-20:]} == {"first"}


def test_where_nothing_pays_rounds_are_plain_and_guesses_take_a_hundredth_of_the_time() -> None:
    referee = referee_of()
    for _ in range(TRIALS):
        play(referee, 100, {"first": 1, "second": 1})
        referee.start_answer(0.0)
    turns = play(referee, 1000, {"first": 1, "second": 1})
    assert all(turn.drafter is None for turn in turns)
    watched = sum(turn.watched is not None for turn in turns)
    assert 0 < watched * 0.01 <= 0.01 * 1000 * 1.05
    assert {turn.watched for turn in turns} == {None, *NAMES}


def test_a_draft_that_wins_is_interrupted_now_and_then_only_to_know_plain_rounds() -> None:
    referee = referee_of(("only",))
    turns = play(referee, 1000, {"only": 2})
    plain = [turn for turn in turns if turn.drafter is None]
    assert 0 < len(plain) <= 1000 / PLAIN_EVERY


def test_one_bad_round_takes_no_more_than_a_part_of_what_an_answer_may_lose() -> None:
    referee = Referee(dict.fromkeys(NAMES, 8), known_costs(Pace(steps=((1, 1.0), (2, 1.6), (4, 4.6), (8, 9.8)))))
    referee.start_answer(0.0)
    assert referee.turn.max_rows == 2
    for _ in range(2):
        referee.cut(ProposedTree(tree=chain(1)))
        referee.measure(num_rows=2, token_ids=[9], proposal_s=0.01, round_s=1.6)
    assert referee.turn.max_rows == 1, "the rest is left for narrower rounds, which this machine lacks"


def test_a_drafter_is_tried_in_every_class_of_temperatures_for_itself() -> None:
    referee = referee_of()
    play(referee, 60, {"first": 2, "second": 4})
    assert referee.turn.drafter == "second"
    referee.start_answer(0.7)
    assert referee.turn.drafter == "first"
    assert set(referee.speeds()) == {"greedy"}


def test_what_is_known_from_before_saves_the_trials() -> None:
    referee = referee_of(known={"greedy": {"first": 1.2, "second": 3.0, "gone": 9.0}})
    turns = play(referee, 30, {"first": 2, "second": 4})
    assert {turn.drafter for turn in turns} == {"second"}
    assert set(referee.speeds()["greedy"]) == set(NAMES)


def test_a_drafter_that_would_first_have_to_read_much_waits_until_its_time_is_saved_up() -> None:
    known = {"greedy": {"first": 0.9, "second": 0.9}}
    reading = {"first": 3.0, "second": 0.0}
    referee = referee_of(known=known, reading_s=reading.__getitem__)
    assert not referee.may_read("first")
    assert referee.may_read("second")
    turns = play(referee, 200, {"first": 1, "second": 1})
    assert {turn.watched for turn in turns} == {None, "second"}
    assert not referee.may_read("first")
    play(referee, 800, {"first": 1, "second": 1})
    assert referee.saved_s["first"] > 3.0
    restarted = referee_of(known=known, reading_s=reading.__getitem__, saved_s=referee.saved_s)
    assert restarted.may_read("first")
    assert not restarted.may_read("first"), "it is spent"


@pytest.mark.parametrize(("speed", "drafts"), [(1.5, True), (1.03, False)])
def test_a_prompt_is_read_for_a_drafter_that_is_known_to_win_more_than_that_in_a_short_answer(
    speed: float, drafts: bool
) -> None:
    referee = referee_of(("only",), known={"greedy": {"only": speed}}, reading_s=lambda _: 3.0)
    assert referee.turn.drafter == ("only" if drafts else None)


def test_trials_go_on_in_the_next_answer_until_every_drafter_has_been_measured() -> None:
    referee = referee_of(("only",), reading_s=lambda _: 2.0)
    play(referee, 2, {"only": 1}, proposal_s=0.8)
    assert referee.turn.drafter is None, "two bad rounds took what this answer may lose"
    referee.start_answer(0.0)
    assert referee.turn.drafter == "only"
    for _ in range(TRIALS):
        play(referee, 20, {"only": 1}, proposal_s=0.8)
        referee.start_answer(0.0)
    assert referee.turn.drafter is None


def test_trials_begin_when_plain_rounds_have_been_timed() -> None:
    referee = Referee(dict.fromkeys(NAMES, 8), RoundCosts(PACE))
    referee.start_answer(0.0)
    turns = play(referee, 12, {"first": 2, "second": 2})
    assert [turn.drafter for turn in turns[:9]] == [None] * 8 + ["first"]


def test_an_unlucky_drafter_gets_more_trials_than_a_bad_one() -> None:
    tried = []
    for tokens in ([2, 1, 1, 2, 1, 1], [1] * 6):
        referee = referee_of(("only",))
        for num_tokens in tokens:
            play(referee, 1, {"only": num_tokens}, proposal_s=0.3)
        tried.append(referee.turn.drafter)
    assert tried == ["only", None]


def test_the_time_of_reading_the_prompt_is_the_answers_too() -> None:
    drafted = []
    for prompt_s in (0.0, 1000.0):
        referee = referee_of(("only",), known={"greedy": {"only": 1.2}})
        referee.read_prompt(prompt_s)
        drafted.append(sum(turn.drafter is not None for turn in play(referee, 20, {"only": 1})))
    assert drafted[0] < drafted[1]


def test_a_cold_first_proposal_is_charged_but_not_taken_for_the_usual_time() -> None:
    means = ProposalMeans()
    assert means.time(9.0, 1.0) == (9.0, 8.0)
    assert means.time(1.5, 0.5) == (1.5, 1.0)
    assert means.time(2.0, 0.0) == (2.0, 1.5)


@pytest.mark.parametrize("extra_s", [0.0, 10e-3, 50e-3])
def test_a_drafter_that_begins_slowly_is_not_given_up(extra_s: float) -> None:
    """Its first proposal takes up to five plain rounds longer, more than a later one may take to be tried."""
    market = Market(FLAT, {"draft_model": Skill(chance=always(0.8), proposal_s=2e-3)})
    propose = market.players["draft_model"].propose
    slow = [extra_s]
    market.players["draft_model"].propose = lambda budget, place, rng: (  # type: ignore[method-assign]
        (found := propose(budget, place, rng))[0], found[1] + (slow.pop() if slow else 0.0)
    )  # fmt: skip
    answers = [market.write(60) for _ in range(20)]
    assert totals(answers[-10:]) < 0.6


def test_a_prompt_is_not_read_for_answers_that_are_too_short_to_win_it_back() -> None:
    referee = referee_of(("only",), known={"greedy": {"only": 1.5}}, reading_s=lambda _: 6.0)
    assert referee.turn.drafter == "only"
    for _ in range(6):
        referee.told_text([1, 2, 3])
        referee.start_answer(0.0)
    assert referee.turn.drafter is None


def test_what_is_free_may_be_read_even_if_watching_spent_its_time() -> None:
    referee = referee_of(("only",), known={"greedy": {"only": 0.5}}, saved_s={"only": -5.0})
    assert referee.turn.drafter is None
    assert referee.may_read("only")


def test_a_long_first_proposal_soon_counts_as_one_of_several() -> None:
    mean = RunningMean()
    for value in (9.0, 1.0, 1.0, 1.0):
        mean.add(value)
    assert mean.value == 3.0
    for _ in range(40):
        mean.add(1.0)
    assert mean.value == pytest.approx(1.0, abs=0.05)


def test_a_watched_tree_is_worth_what_came_of_it() -> None:
    for text, expected in (([9], 1), ([1, 9], 2), ([1, 2, 9], 3), ([1, 2, 3], 4)):
        record = DraftRecord()
        record.watch(chain(3), 2.0)
        for token_id in text:
            assert record.is_watched
            record.told([token_id])
        assert not record.is_watched
        assert record.speed == expected / 2.0


def test_with_fixed_widths_the_first_drafter_drafts_in_every_round_until_it_is_left_out() -> None:
    referee = Referee({"first": 4, "second": 8})
    referee.start_answer(0.0)
    assert play(referee, 100, {"first": 1, "second": 1}) == [DraftTurn(drafter="first", max_rows=4)] * 100
    assert len(referee.cut(ProposedTree(tree=chain(9)))) == 4
    referee.leave_out("first")
    assert referee.turn == DraftTurn()
    referee.start_answer(0.0)
    assert referee.turn.drafter == "first", "the next text tries it again"


def test_a_drafter_whose_proposals_take_no_time_always_drafts_and_rows_are_chosen_by_their_cost() -> None:
    steep = RoundCosts(Pace(steps=tuple((rows, float(rows)) for rows in range(1, 9))))
    referee = Referee({"parallel": 8}, steep, drafts_always=True)
    referee.start_answer(0.0)
    unlikely = TokenTree(0)
    unlikely.add_chain([1, 2, 3], [-2.0] * 3)
    for _ in range(100):
        assert referee.turn.drafter == "parallel"
        assert len(referee.cut(ProposedTree(tree=unlikely))) == 1
        referee.measure(num_rows=1, token_ids=[9], proposal_s=0.0, round_s=1.0)


def test_a_drafter_alone_still_waits_to_read_what_it_cannot_win_back() -> None:
    known = {"greedy": {"first": 1.03, "second": 1.03}}
    alone = referee_of(known=known).alone("second", lambda _: 3.0)
    alone.start_answer(0.0)
    assert alone.turn.drafter is None
    assert not alone.may_read("second")


def test_a_drafter_that_is_left_out_is_neither_drafted_with_nor_watched() -> None:
    referee = referee_of()
    play(referee, 60, {"first": 2, "second": 4})
    referee.leave_out("second")
    turns = play(referee, 400, {"first": 2, "second": 4})
    assert {turn.drafter for turn in turns} <= {"first", None}
    assert "second" not in {turn.watched for turn in turns}


def test_a_prediction_is_verified_where_it_is_expected_to_bring_more_than_drafters_do() -> None:
    referee = referee_of()
    predicted = TokenTree(0)
    predicted.add_chain([1, 2], [-0.05] * 2)
    assert referee.cut_prediction(ProposedTree(tree=TokenTree(0))) is None
    assert referee.cut_prediction(ProposedTree(tree=predicted)) is not None
    play(referee, 400, {"first": 6, "second": 6})
    assert referee.cut_prediction(ProposedTree(tree=predicted)) is None
