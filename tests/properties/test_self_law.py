"""The first tokens of a target that drafts for itself have the target's own law, whatever became of its drafts.

Seeds are what is drawn. Since sampling is keyed, every text must also be the plain one of its seed, which is checked
beside the law: the law would be right with another coupling as well.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from forerun.core.config import SamplingParams
from forerun.core.sublayers import ATTENTION, MLP, SkipSet
from forerun.drafting.layer_skip.swift import load_library
from forerun.drafting.none import NoneDrafter
from forerun.speculation.tree import TokenTree
from tests.drafting.layer_skip import playing
from tests.drafting.layer_skip.playing import drafter_on, ids_of, num_accepted, num_drafted, plain_ids, play
from tests.drafting.layer_skip.toy_law import (
    VOCAB_SIZE,
    Text,
    first_tokens,
    fit,
    given,
    joint_law,
    params_of,
    toy_target,
)
from tests.marks import in_turn
from tests.varied import Varied, layer_skip

LEAST_P = 1e-4
NUM_DEFAULT, NUM_SLOW = 1000, 20_000
OTHERS = [(0.6, 0.95, False), (1.5, 0.5, False), (1.0, 1.0, True), (0.6, 0.95, True), (1.5, 0.5, True)]
SETTINGS = pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.6, 0.95), (1.5, 0.5)])
SKIPPED: SkipSet = frozenset({(1, ATTENTION), (2, MLP)})
# A chain of two with runners-up beside it, the same for every seed, so that what became of it is known of a text.
COMB = layer_skip(
    draft_width=1, depth=2, num_children=2, verify_width=5, knows_noise=False, looks_up=False, adaptive=False,
    search="off", min_mass=0.0,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Texts by seed, and the tree of each first round."""

    texts: list[Text]
    trees: list[TokenTree]


def draw(config: Varied, params: SamplingParams, num_seeds: int) -> Draws:
    """Requests of many seeds; each text is compared with the plain one."""
    target, plain_target, plain = toy_target(config), toy_target(None), NoneDrafter()
    drafter = drafter_on(target, config, skipped=SKIPPED)
    propose, trees, texts = drafter.propose, list[TokenTree](), list[Text]()

    def note() -> TokenTree:
        trees.append(propose())
        return trees[-1]

    drafter.propose = note  # type: ignore[method-assign]
    firsts = []
    for seed in range(num_seeds):
        firsts.append(len(trees))
        text, _ = first_tokens(target, drafter, params, seed)
        assert text == first_tokens(plain_target, plain, params, seed)[0], f"seed {seed}"
        texts.append(text)
    return Draws(texts=texts, trees=[trees[place] for place in firsts])


def main_chain(tree: TokenTree) -> list[int]:
    """The likeliest child of the root, its likeliest child, and so on."""
    chain = [0]
    while children := tree.children(chain[-1]):
        chain.append(max(children.values(), key=tree.log_probs.__getitem__))
    return chain[1:]


def is_rejected_at_once(tree: TokenTree, text: Text) -> bool:
    return not tree.descend(text)


def is_sibling_accepted(tree: TokenTree, text: Text) -> bool:
    path = tree.descend(text)
    return bool(path) and path[-1] not in main_chain(tree)


def is_all_accepted(tree: TokenTree, text: Text) -> bool:
    return tree.descend(text) == main_chain(tree)


EVENTS: dict[str, Callable[[TokenTree, Text], bool]] = {
    "rejected at depth 1": is_rejected_at_once,
    "sibling accepted": is_sibling_accepted,
    "all accepted": is_all_accepted,
}


def check_law(config: Varied, params: SamplingParams, num_seeds: int) -> None:
    draws, law = draw(config, params, num_seeds), joint_law(params)
    assert fit(draws.texts, law) > LEAST_P
    if config.policies.tree.knows_noise:
        return
    (tree,) = {tuple(tree.token_ids): tree for tree in draws.trees}.values()
    assert tree.depths == [0, 1, 1, 2, 2]
    for name, event in EVENTS.items():
        texts = [text for text in draws.texts if event(tree, text)]
        assert texts, name
        expected = given(law, lambda text, event=event: event(tree, text))
        assert fit(texts, expected) > LEAST_P, name


@pytest.mark.parametrize(
    ("temperature", "top_p", "noise_aware"),
    [(1.0, 1.0, False), *(pytest.param(*each, marks=pytest.mark.slow) for each in OTHERS)],
)
def test_the_first_three_tokens_have_the_targets_law_whatever_became_of_the_draft(
    temperature: float, top_p: float, noise_aware: bool
) -> None:
    check_law(COMB.changed(knows_noise=noise_aware), params_of(temperature, top_p), NUM_DEFAULT)


@pytest.mark.slow
@pytest.mark.soak
@SETTINGS
@pytest.mark.parametrize("noise_aware", [False, True])
def test_they_have_it_in_many_draws(temperature: float, top_p: float, noise_aware: bool) -> None:
    check_law(COMB.changed(knows_noise=noise_aware), params_of(temperature, top_p), NUM_SLOW)


def test_a_law_that_is_a_little_off_does_not_fit() -> None:
    params = params_of(1.0, 1.0)
    texts = draw(COMB, params, NUM_DEFAULT).texts
    assert fit(texts, joint_law(params_of(1.3, 1.0))) < LEAST_P
    assert fit(texts, joint_law(params_of(1.0, 0.95))) == 0.0


NARROW = {
    "one token is left": params_of(1.0, 0.01),
    "two or three are left": params_of(1.0, 0.6),
    "most are forbidden": SamplingParams(
        temperature=1.0, logit_bias=dict.fromkeys(range(1, VOCAB_SIZE - 1), float("-inf"))
    ),
    "greedy, most are forbidden": SamplingParams(logit_bias=dict.fromkeys(range(1, VOCAB_SIZE - 1), float("-inf"))),
    "the four likeliest": SamplingParams(temperature=1.5, top_k=4, min_p=0.2),
}


@pytest.mark.parametrize(
    ("name", "ways"), in_turn(list(NARROW), [(False, False), (False, True), (True, False), (True, True)])
)
def test_where_fewer_tokens_are_left_than_children_none_that_cannot_be_is_drafted(
    name: str, ways: tuple[bool, bool]
) -> None:
    """Twelve children of a vocabulary of ten, of which top_p leaves few."""
    noise_aware, adaptive = ways
    config = COMB.changed(
        num_children=12, verify_width=16, draft_width=3, depth=3, knows_noise=noise_aware, adaptive=adaptive
    )
    target = toy_target(config)
    drafter = drafter_on(target, config, skipped=SKIPPED)
    propose, trees = drafter.propose, list[TokenTree]()

    def note() -> TokenTree:
        trees.append(propose())
        return trees[-1]

    drafter.propose = note  # type: ignore[method-assign]
    found: list[Any] = []
    for seed in range(20):
        rounds = play(target, drafter, params=NARROW[name], seed=seed, num_tokens=20)
        plain = play(toy_target(None), NoneDrafter(), params=NARROW[name], seed=seed, num_tokens=20)
        assert ids_of(rounds, 20) == ids_of(plain)
        found += rounds
    assert 0 < num_accepted(found) <= num_drafted(found)
    for tree in trees:
        assert all(value > float("-inf") for value in tree.log_probs)
        assert all(0 <= token < VOCAB_SIZE for token in tree.token_ids)
        if "forbidden" in name:
            assert set(tree.token_ids[1:]) <= {0, VOCAB_SIZE - 1}


@pytest.mark.parametrize("params", [playing.GREEDY, playing.SAMPLED], ids=["greedy", "sampled"])
def test_the_text_of_a_seed_is_the_same_with_any_search_and_any_seed_of_it(params: SamplingParams) -> None:
    """And no generator that others use is read or moved, so that a search stays a matter of its own."""
    weights, tree = playing.weights_of(), {"draft_width": 2, "depth": 3, "verify_width": 8, "search_share": 1.0}
    expected = plain_ids(weights, params=params, num_tokens=50)
    found = set()
    load_library()  # whose own imports draw from the global generator
    states = random.getstate(), torch.get_rng_state(), np.random.get_state()[1].tolist()
    for search in ("off", "gated", "paper"):
        for seed in (0, 1, 2):
            config = layer_skip(**tree, search=search, seed=seed)
            drafter = drafter_on(playing.target_for(config, weights), config)
            rounds = play(drafter.runner._owner, drafter, params=params, num_tokens=50)
            assert ids_of(rounds, 50) == expected
            found.add(drafter.search.strategy.skipped)
    assert len(found) > 3, "the searches found nothing of their own"
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    assert np.random.get_state()[1].tolist() == states[2]
