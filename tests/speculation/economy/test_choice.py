"""The chooser: what it starts with, who is watched, what is kept, and what a round may cost."""

from collections.abc import Mapping, Sequence

import pytest

from forerun.core.pace import Pace
from forerun.speculation.economy.chances import FEWEST, DraftRecord, ProposalMeans
from forerun.speculation.economy.choice import PLAIN_EVERY, TRIALS, Chooser, DraftTurn
from forerun.speculation.economy.costs import RoundCosts, RunningMean
from forerun.speculation.economy.rests import ALONE, PLAIN_RISE, REST_ROUNDS, RestRule
from forerun.speculation.tree import TokenTree
from tests.speculation.economy.market import FLAT, Market, Skill, always, totals

PACE = Pace(steps=((1, 1.0), (2, 1.1), (4, 1.2), (8, 1.4)))
NAMES = ("first", "second")


def chain(num_nodes: int) -> TokenTree:
    """A root and tokens 1, 2, 3 and so on."""
    tree = TokenTree(0)
    tree.add_chain(list(range(1, num_nodes + 1)), [0.0] * num_nodes)
    return tree


def play(
    chooser: Chooser, num_rounds: int, tokens: Mapping[str, int], proposal_s: float = 0.01, rows: int = 8
) -> list[DraftTurn]:
    """Rounds in which each drafter brings so many tokens, drafted or watched; return who had the turns."""
    turns = []
    for _ in range(num_rounds):
        turn = chooser.turn
        turns.append(turn)
        if turn.watched is not None:
            chooser.watch(chain(tokens[turn.watched] - 1) if tokens[turn.watched] > 1 else TokenTree(0), proposal_s)
        num_rows = 1 if turn.drafter is None else min(rows, turn.most_rows)
        num_tokens = 1 if turn.drafter is None else min(tokens[turn.drafter], num_rows)
        round_s = PACE.step_s(num_rows)
        chooser.measure(
            num_rows=num_rows, token_ids=range(1, num_tokens + 1), proposal_s=proposal_s if turn.drafter else 0.0,
            round_s=round_s,
        )  # fmt: skip
    return turns


def chooser_of(names: Sequence[str] = NAMES, **rest: object) -> Chooser:
    chooser = Chooser(names, known_costs(PACE), **rest)  # type: ignore[arg-type]
    chooser.begin(0.0)
    return chooser


def known_costs(pace: Pace) -> RoundCosts:
    """Those of a machine on which plain rounds were played."""
    costs = RoundCosts(pace)
    costs.measure(1, pace.step_s(1), 8)
    return costs


def test_each_is_tried_by_drafting_and_the_fastest_stays() -> None:
    chooser = chooser_of()
    turns = play(chooser, 60, {"first": 2, "second": 4})
    assert [turn.drafter for turn in turns[:FEWEST]] == ["first"] * FEWEST
    assert {turn.drafter for turn in turns[2 * FEWEST :]} == {"second"}


def test_the_other_one_is_watched_and_taken_up_when_it_becomes_faster() -> None:
    chooser = chooser_of()
    play(chooser, 60, {"first": 2, "second": 4})
    later = play(chooser, 400, {"first": 8, "second": 4})
    assert any(turn.watched == "first" for turn in later)
    assert {turn.drafter for turn in later[-20:]} == {"first"}


def test_where_nothing_pays_rounds_are_plain_and_guesses_take_a_hundredth_of_the_time() -> None:
    chooser = chooser_of()
    for _ in range(TRIALS):
        play(chooser, 100, {"first": 1, "second": 1})
        chooser.begin(0.0)
    turns = play(chooser, 1000, {"first": 1, "second": 1})
    assert all(turn.drafter is None for turn in turns)
    watched = sum(turn.watched is not None for turn in turns)
    assert 0 < watched * 0.01 <= 0.01 * 1000 * 1.05
    assert {turn.watched for turn in turns} == {None, *NAMES}


def test_a_draft_that_wins_is_interrupted_now_and_then_only_to_know_plain_rounds() -> None:
    chooser = chooser_of(("only",))
    turns = play(chooser, 1000, {"only": 2})
    plain = [turn for turn in turns if turn.drafter is None]
    assert 0 < len(plain) <= 1000 / PLAIN_EVERY


def test_one_bad_round_takes_no_more_than_a_part_of_what_an_answer_may_lose() -> None:
    chooser = Chooser(NAMES, known_costs(Pace(steps=((1, 1.0), (2, 1.6), (4, 4.6), (8, 9.8)))))
    chooser.begin(0.0)
    assert chooser.turn.most_rows == 2
    for _ in range(2):
        chooser.rows_of(chain(1))
        chooser.measure(num_rows=2, token_ids=[9], proposal_s=0.01, round_s=1.6)
    assert chooser.turn.most_rows == 1, "the rest is left for narrower rounds, which this machine lacks"


def test_a_drafter_is_tried_in_every_class_of_temperatures_for_itself() -> None:
    chooser = chooser_of()
    play(chooser, 60, {"first": 2, "second": 4})
    assert chooser.turn.drafter == "second"
    chooser.begin(0.7)
    assert chooser.turn.drafter == "first"
    assert set(chooser.speeds()) == {"greedy"}


def test_what_is_known_from_before_saves_the_trials() -> None:
    chooser = chooser_of(known={"greedy": {"first": 1.2, "second": 3.0, "gone": 9.0}})
    turns = play(chooser, 30, {"first": 2, "second": 4})
    assert {turn.drafter for turn in turns} == {"second"}
    assert set(chooser.speeds()["greedy"]) == set(NAMES)


def test_a_drafter_that_would_first_have_to_read_much_waits_until_its_time_is_saved_up() -> None:
    known = {"greedy": {"first": 0.9, "second": 0.9}}
    reading = {"first": 3.0, "second": 0.0}
    chooser = chooser_of(known=known, reading_s=reading.__getitem__)
    assert not chooser.may_read("first")
    assert chooser.may_read("second")
    turns = play(chooser, 200, {"first": 1, "second": 1})
    assert {turn.watched for turn in turns} == {None, "second"}
    assert not chooser.may_read("first")
    play(chooser, 800, {"first": 1, "second": 1})
    assert chooser.saved_s["first"] > 3.0
    restarted = chooser_of(known=known, reading_s=reading.__getitem__, saved_s=chooser.saved_s)
    assert restarted.may_read("first")
    assert not restarted.may_read("first"), "it is spent"


@pytest.mark.parametrize(("speed", "drafts"), [(1.5, True), (1.03, False)])
def test_a_prompt_is_read_for_a_drafter_that_is_known_to_win_more_than_that_in_a_short_answer(
    speed: float, drafts: bool
) -> None:
    chooser = chooser_of(("only",), known={"greedy": {"only": speed}}, reading_s=lambda _: 3.0)
    assert chooser.turn.drafter == ("only" if drafts else None)


def test_trials_go_on_in_the_next_answer_until_every_drafter_has_been_measured() -> None:
    chooser = chooser_of(("only",), reading_s=lambda _: 2.0)
    play(chooser, 2, {"only": 1}, proposal_s=0.8)
    assert chooser.turn.drafter is None, "two bad rounds took what this answer may lose"
    chooser.begin(0.0)
    assert chooser.turn.drafter == "only"
    for _ in range(TRIALS):
        play(chooser, 20, {"only": 1}, proposal_s=0.8)
        chooser.begin(0.0)
    assert chooser.turn.drafter is None


def test_trials_begin_when_plain_rounds_have_been_timed() -> None:
    chooser = Chooser(NAMES, RoundCosts(PACE))
    chooser.begin(0.0)
    turns = play(chooser, 12, {"first": 2, "second": 2})
    assert [turn.drafter for turn in turns[:9]] == [None] * 8 + ["first"]


def test_an_unlucky_drafter_gets_more_trials_than_a_bad_one() -> None:
    tried = []
    for tokens in ([2, 1, 1, 2, 1, 1], [1] * 6):
        chooser = chooser_of(("only",))
        for num_tokens in tokens:
            play(chooser, 1, {"only": num_tokens}, proposal_s=0.3)
        tried.append(chooser.turn.drafter)
    assert tried == ["only", None]


def test_the_time_of_reading_the_prompt_is_the_answers_too() -> None:
    drafted = []
    for prompt_s in (0.0, 1000.0):
        chooser = chooser_of(("only",), known={"greedy": {"only": 1.2}})
        chooser.read_prompt(prompt_s)
        drafted.append(sum(turn.drafter is not None for turn in play(chooser, 20, {"only": 1})))
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
    market.players["draft_model"].propose = lambda place, rng: (  # type: ignore[method-assign]
        (found := propose(place, rng))[0], found[1] + (slow.pop() if slow else 0.0)
    )  # fmt: skip
    answers = [market.write(60) for _ in range(20)]
    assert totals(answers[-10:]) < 0.6


def test_a_prompt_is_not_read_for_answers_that_are_too_short_to_win_it_back() -> None:
    chooser = chooser_of(("only",), known={"greedy": {"only": 1.5}}, reading_s=lambda _: 6.0)
    assert chooser.turn.drafter == "only"
    for _ in range(6):
        chooser.follow([1, 2, 3])
        chooser.begin(0.0)
    assert chooser.turn.drafter is None


def test_what_is_free_may_be_read_even_if_watching_spent_its_time() -> None:
    chooser = chooser_of(("only",), known={"greedy": {"only": 0.5}}, saved_s={"only": -5.0})
    assert chooser.turn.drafter is None
    assert chooser.may_read("only")


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
            record.follow([token_id])
        assert not record.is_watched
        assert record.speed == expected / 2.0


def drafted(alone: RestRule, num_rounds: int, drafted_s: float, plain_s: float = 1.0) -> list[bool]:
    """Whether each round was drafted, where drafted ones bring three tokens."""
    kinds = []
    for _ in range(num_rounds):
        alone.next(lambda: True, may_rest=True)
        kinds.append(alone.drafts)
        if alone.drafts:
            alone.measure(3, 3 * drafted_s)
        elif alone.is_timed:
            alone.measure_rest(plain_s)
    return kinds


def alone() -> RestRule:
    chosen = RestRule(looks_up=False)
    chosen.choose_by(RoundCosts(PACE))
    chosen.begin(0.0)
    return chosen


def test_the_timed_round_of_a_rest_counts_as_all_of_it() -> None:
    chosen = alone()
    drafted(chosen, 2000, 1.5)
    assert chosen._chooser is not None
    drafted(chosen, 320, 1.5, plain_s=2.0)
    assert 1.1 < chosen._chooser.costs.plain_s <= 2.0
    assert ALONE in chosen._chooser.speeds()["greedy"]


def test_a_rest_has_one_check_and_no_rows_but_in_its_last_round() -> None:
    chosen = RestRule(looks_up=False)
    rounds = []
    for _ in range(REST_ROUNDS):
        chosen.next(lambda: False, may_rest=True)
        rounds.append((chosen.drafts, chosen.is_checked, chosen.is_timed, chosen.may_carry_rows))
    middle = [(False, False, False, False)] * (REST_ROUNDS - 3)
    assert rounds == [(False, True, False, False), *middle, (False, False, True, False), (False, False, False, True)]
    chosen.next(lambda: True, may_rest=True)
    assert chosen.drafts
    assert chosen.grows


def test_a_plain_round_of_a_rest_is_believed_to_be_slow_only_little_by_little() -> None:
    chosen = RestRule(looks_up=False)
    assert chosen.measure_rest(1.0) == REST_ROUNDS
    chosen.measure_rest(5.0)
    assert chosen.plain_round_s == pytest.approx(PLAIN_RISE)
    chosen.measure_rest(0.5)
    assert chosen.plain_round_s == 0.5
