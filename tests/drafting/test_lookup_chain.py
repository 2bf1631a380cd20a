"""Looked-up chains are followed over the rounds until they go wrong or end, whatever was verified of them."""

import math

from forerun.core.drafter_config import MIN_MATCH
from forerun.drafting.prompt_lookup import LookupChain
from forerun.speculation.growth import BestFirstGrowth
from forerun.speculation.tree import TokenTree

STRETCH = list(range(100, 112))
PROMPT = [*STRETCH, 1, 2, *STRETCH[:2]]  # the last two tokens occurred before, and ten more followed them there


def chain_of(num_tokens: int, prompt: list[int] = PROMPT) -> LookupChain:
    chain = LookupChain(num_tokens=num_tokens)
    chain.read_prompt(prompt)
    return chain


def hung(chain: LookupChain) -> TokenTree:
    """The tree of a root with the chain below it."""
    tree = TokenTree(0)
    chain.hang_into(tree)
    return tree


def chance(chain: LookupChain, match_length: int, place: int) -> float:
    """Of a chain's token at a place, given those before it."""
    return math.exp(chain._record.log_probs(match_length, place + 1)[place])


def test_what_followed_the_last_tokens_hangs_below_the_root() -> None:
    chain = chain_of(5)
    tree = hung(chain)
    assert tree.token_ids[1:] == STRETCH[2:7]
    assert tree.parents == [-1, 0, 1, 2, 3, 4]
    growth = BestFirstGrowth(0, horizon=16, draft_width=4)
    chain.hang_into(growth)
    assert growth.tree.token_ids == tree.token_ids


def test_a_text_without_repetition_hangs_nothing() -> None:
    chain = chain_of(5, [1, 2, 3, 4])
    assert len(hung(chain)) == 1
    chain.accept([9])
    assert chance(chain, MIN_MATCH, 0) == 0.5


def test_a_chain_that_comes_true_round_by_round_is_learnt_about_to_its_end() -> None:
    """Two tokens a round; only the first chain is of the shortest match, the ones after it match longer."""
    chain = chain_of(10)
    hung(chain)
    before = [chance(chain, MIN_MATCH, place) for place in (0, 1, 3, 7)]
    for start in range(2, 12, 2):
        assert chance(chain, MIN_MATCH, 7) == before[3] or start > 9, "nothing is known of places not reached yet"
        chain.accept(STRETCH[start : start + 2])
        hung(chain)
    after = [chance(chain, MIN_MATCH, place) for place in (0, 1, 3, 7)]
    assert all(late > early for early, late in zip(before, after, strict=True))


def test_a_chain_that_goes_wrong_counts_there_once_and_is_dropped() -> None:
    chain = chain_of(10)
    hung(chain)
    chain.accept(STRETCH[2:5])
    hung(chain)
    chain.accept([7])  # the fourth token is another
    counted = {place: chance(chain, MIN_MATCH, place) for place in (0, 1, 3, 7)}
    assert counted[0] > 0.5 < counted[1]
    assert counted[3] < 0.5 == counted[7]
    for token_id in (STRETCH[6], 8):  # the chain's own fifth token does not revive it; neither continues anything
        hung(chain)
        chain.accept([token_id])
    assert {place: chance(chain, MIN_MATCH, place) for place in (0, 1, 3, 7)} == counted


def test_what_chains_are_worth_survives_the_request_and_what_is_pending_does_not() -> None:
    chain = chain_of(10)
    hung(chain)
    chain.accept(STRETCH[2:4])
    learnt = chance(chain, MIN_MATCH, 0)
    assert learnt > 0.5
    second = chance(chain, MIN_MATCH, 3)
    chain.read_prompt([5, 6, 7])
    hung(chain)
    chain.accept(STRETCH[4:8])  # what the old chain would have gone on with
    assert chance(chain, MIN_MATCH, 0) == learnt
    assert chance(chain, MIN_MATCH, 3) == second
