"""Widths by cost: the fastest cut, and only expansions that pay."""

import math
import random

import pytest

from forerun.core.pace import Pace
from forerun.speculation.growth import BestFirstGrowth
from forerun.speculation.referee.budget import FIRST_CHILDREN, DraftCosts, ProposedTree, RowBudget
from forerun.speculation.referee.costs import RoundCosts
from forerun.speculation.tree import TokenTree

STEEP = Pace(steps=tuple((rows, 0.005 + 0.005 * rows) for rows in range(1, 17)))
FLAT = Pace(steps=((16, 0.010),))


def flat(seconds: float) -> Pace:
    return Pace(steps=((16, seconds),))


def budget(target: Pace | RoundCosts, expansion: Pace | None, most: int = 16, overhead_s: float = 0.0) -> RowBudget:
    costs = RoundCosts(target) if isinstance(target, Pace) else target
    found = RowBudget(most, costs, DraftCosts(expansion=expansion, expansion_overhead_s=overhead_s))
    found.start_round(most)
    return found


def random_pace(rng: random.Random, most: int) -> Pace:
    seconds = 0.010
    steps = []
    for rows in range(1, most + 1):
        seconds += rng.choice((0.0, 0.0, 0.001, 0.004))
        steps.append((rows, seconds))
    return Pace(steps=tuple(steps))


def random_chances(rng: random.Random, number: int) -> list[float]:
    return [1.0, *sorted((rng.random() for _ in range(number - 1)), reverse=True)]


@pytest.mark.parametrize("seed", range(15))
def test_the_rows_are_those_of_most_tokens_per_second(seed: int) -> None:
    """By trying each, with all that the round has cost and will cost besides."""
    rng = random.Random(seed)
    pace = random_pace(rng, 12)
    most = rng.randint(1, 12)
    chances = random_chances(rng, rng.randint(1, 20))
    spent_s = rng.choice((0.0, 0.02))
    beyond_s = rng.choice((0.0, 0.005))
    rule = budget(RoundCosts(pace, beyond_s), flat(0.002), most)
    rule.measure_expansion(1, spent_s)
    speeds = {
        rows: sum(chances[:rows]) / (spent_s + beyond_s + pace.step_s(rows))
        for rows in range(1, min(most, len(chances)) + 1)
    }
    assert speeds[rule.num_rows(chances)] == pytest.approx(max(speeds.values()))


def test_free_rows_are_all_verified_and_dear_ones_not() -> None:
    chances = [1.0, 0.6, 0.4, 0.3, 0.2, 0.1, 0.05, 0.01]
    assert budget(FLAT, None).num_rows(chances) == len(chances)
    assert budget(FLAT, None, 5).num_rows(chances) == 5
    few = budget(STEEP, None).num_rows(chances)
    assert 1 < few < 5
    assert budget(Pace(steps=((1, 0.01), (16, 1.0))), None).num_rows(chances) == 1


def test_what_a_round_costs_besides_makes_further_rows_cheap() -> None:
    chances = [1.0, 0.6, 0.4, 0.3, 0.2, 0.1, 0.05, 0.01]
    costs = RoundCosts(STEEP)
    rule = budget(costs, None)
    few = rule.num_rows(chances)
    for _ in range(400):
        costs.measure(few, 0.5)
    assert rule.num_rows(chances) > few


def test_an_expansion_that_only_displaces_rows_is_refused() -> None:
    """Its children are as likely as what they would take the rows of, so that even a cheap one brings nothing."""
    tree = [1.0, *[0.55] * 7]
    assert max(FIRST_CHILDREN) * 0.55 < 0.55
    assert budget(FLAT, flat(1e-6), 8).num_nodes([0.55] * 4, tree) == 0
    assert budget(FLAT, flat(1e-6), 9).num_nodes([0.55] * 4, tree) > 0, "with a row to spare it pays"


def test_an_expansion_has_to_be_worth_its_time() -> None:
    frontier = [0.5, 0.3]
    tree = [1.0, 0.5, 0.3]
    assert budget(FLAT, flat(1e-4)).num_nodes(frontier, tree) == 2
    assert budget(FLAT, flat(5e-3)).num_nodes(frontier, tree) == 0
    late = budget(FLAT, flat(1e-4))
    for _ in range(400):
        late.start_round(16)
        late.measure_expansion(1, 5e-3)  # expansions turn out to take longer than their passes
    late.start_round(16)
    assert late.num_nodes(frontier, tree) == 0


def test_expansions_that_nobody_waits_for_are_all_worth_it() -> None:
    assert budget(STEEP, None).num_nodes([0.1, 0.01, 0.0], [1.0, 0.1]) == 3
    assert budget(STEEP, flat(0.1)).num_nodes([], [1.0, 0.1]) == 0


def num_expansions(draft_s: float, target: Pace = FLAT) -> int:
    """Of a tree whose nodes have two children each."""
    rule = budget(target, flat(draft_s))
    growth = BestFirstGrowth(0, horizon=16, draft_width=4)
    for done in range(50):
        batch = growth.next_batch(lambda frontier: rule.num_nodes(frontier, ProposedTree(tree=growth.tree).chances))
        if not batch:
            return done
        for node in batch:
            rule.measure_children([0.7, 0.2])
            growth.add_children(node, [1, 2], [math.log(0.7), math.log(0.2)])
        rule.measure_expansion(len(batch), draft_s)
    raise AssertionError("the growth goes on for ever")


def test_a_slow_draft_stops_earlier_and_a_cheap_one_later() -> None:
    counts = [num_expansions(draft_s) for draft_s in (1e-5, 1e-3, 3e-3, 1e-2, 1.0)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[2] > counts[-1] == 1


def test_overheads_that_are_given_give_way_to_what_is_measured() -> None:
    costs = RoundCosts(FLAT, 5e-3)
    rule = budget(costs, flat(1e-3), overhead_s=4e-3)
    for _ in range(500):
        rule.start_round(16)
        rule.measure_expansion(1, 1.25e-3)
        costs.measure(1, 10e-3 + 0.5e-3)
    assert 0.5e-3 < costs.beyond_s < 1.3e-3
    assert rule.expansion_overhead_s == pytest.approx(0.25e-3, rel=0.01)


def test_chances_that_come_true_too_seldom_are_believed_less_and_for_a_while_only() -> None:
    """A draft that is always sure and seldom right would have all its rows verified for ever."""
    chances = [1.0, *[0.95] * 7]
    rule = budget(STEEP, None, 8)
    assert rule.num_rows(chances) == 8
    for _ in range(10):
        rule.start_round(8)
        rule.num_rows(chances)
        rule.end_round(0)
    assert rule.num_rows(chances) == 1
    for _ in range(200):
        rule.start_round(1)
        rule.num_rows(chances)
        rule.end_round(0)
    rule.start_round(8)
    assert rule.num_rows(chances) > 1, "texts change"


def test_no_more_rows_are_verified_than_are_allowed_and_nothing_is_expanded_beyond_them() -> None:
    rule = budget(FLAT, flat(1e-4), 8)
    assert rule.num_rows([1.0] * 8) == 8
    rule.start_round(3)
    assert rule.num_rows([1.0] * 8) == 3
    assert rule.num_nodes([0.9], [1.0, 0.95, 0.94, 0.9]) == 0


def test_with_fixed_widths_the_likeliest_nodes_are_verified_in_full() -> None:
    tree = TokenTree(0)
    tree.add_chain([1, 2, 3, 4], [math.log(0.1)] * 4)
    fixed = RowBudget(3)
    fixed.start_round(3)
    assert fixed.cut(ProposedTree(tree=tree)).token_ids == [0, 1, 2]
