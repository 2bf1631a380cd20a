"""Continuations are proposed as far as they pay."""

import random

import pytest

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import PromptLookup
from forerun.core.pace import Pace
from forerun.drafting.prompt_lookup import PromptLookupDrafter
from forerun.speculation.referee.budget import RowBudget
from forerun.speculation.referee.costs import RoundCosts
from forerun.speculation.walk import walk
from tests.tiny import own_outcome

ROWS_COST_A_FIFTH = Pace(steps=((1, 1.0), (8, 1.2)))
PARAMS = SamplingParams()


def proposals(budget: RowBudget, prompt: list[int], text: list[int]) -> list[int]:
    """Drafted tokens of every round in which this text is written after the prompt."""
    drafter = PromptLookupDrafter(PromptLookup())
    drafter.begin(prompt, PARAMS, None)
    sizes = []
    place = 0
    while place < len(text):
        budget.start_round(16)
        tree = budget.cut(drafter.propose(budget))
        sizes.append(len(tree) - 1)
        choices = [text[place + depth] if place + depth < len(text) else 0 for depth in tree.depths]
        acceptance = walk(tree, choices)
        drafter.told(own_outcome(acceptance))
        budget.end_round(len(acceptance.path))
        place += len(acceptance.tokens)
    return sizes


def adaptive(pace: Pace = ROWS_COST_A_FIFTH) -> RowBudget:
    return RowBudget(16, RoundCosts(pace))


def misleading_text(num_tokens: int) -> list[int]:
    """Pairs of tokens that occur again and again, each time with another one behind."""
    rng = random.Random(1)
    return [token for _ in range(num_tokens // 3) for token in (1, 2, rng.randrange(10, 10_000))]


def test_nothing_is_proposed_where_it_seldom_came_true() -> None:
    text = misleading_text(900)
    fixed = proposals(RowBudget(16), [0], text)
    chosen = proposals(adaptive(), [0], text)
    assert sum(size > 0 for size in fixed[-100:]) > 30, "there must be something to be misled by"
    assert sum(chosen[-100:]) <= 0.05 * sum(fixed[-100:])


def test_it_comes_back_when_the_text_begins_to_repeat_itself() -> None:
    stretch = list(range(20_000, 20_040))
    sizes = proposals(adaptive(), [0], misleading_text(900) + stretch * 6)
    assert max(sizes[-10:]) == 7


@pytest.mark.parametrize("share", [0.0, 5.0])
def test_rows_that_cost_nothing_are_always_taken_and_dear_ones_only_for_much(share: float) -> None:
    stretch = list(range(100, 140))
    sizes = proposals(adaptive(Pace(steps=((1, 1.0), (8, 1.0 + share)))), stretch, stretch)
    assert (sizes[4] > 0) == (share == 0.0)
