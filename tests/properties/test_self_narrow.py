"""A target that drafts for itself where few tokens can be chosen, and whatever its search is and finds."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from forerun.backends.cpu.backend import NATIVE
from forerun.backends.cpu.binding import fault
from forerun.backends.torch.backend import FUSED
from forerun.core.config import SamplingParams
from forerun.core.sublayers import ATTENTION, MLP, SkipSet
from forerun.decoding.drafters import Drafters
from forerun.drafting.layer_skip.swift_strategy import load_library
from forerun.model.runner import Runner
from forerun.speculation.referee.budget import ProposedTree, RowBudget
from forerun.speculation.tree import TokenTree
from tests.drafting.layer_skip import playing
from tests.drafting.layer_skip.playing import drafter_on, ids_of, num_accepted, num_drafted, plain_ids, play, target_for
from tests.marks import in_turn
from tests.tiny import plain_spec
from tests.varied import Varied, layer_skip

VOCAB_SIZE = 10
SPEC = plain_spec(num_layers=4, vocab_size=VOCAB_SIZE, max_positions=128)
WEIGHTS = playing.weights_of(37, SPEC, dtype=torch.float32)
WEIGHTS["head.weight"] = 0.6 * WEIGHTS["head.weight"]  # so that several tokens are likely even where few are left
SKIPPED: SkipSet = frozenset({(1, ATTENTION), (2, MLP)})
COMB = layer_skip(
    draft_width=1, depth=2, num_children=2, verify_width=5, knows_noise=False, looks_up=False, adaptive=False,
    search="off", min_mass=0.0,
)  # fmt: skip


def params_of(temperature: float, top_p: float) -> SamplingParams:
    return SamplingParams(temperature=temperature, top_p=top_p)


def toy_target(config: Varied | None) -> Runner:
    """In float32, by the native kernels where they are."""
    return target_for(config, WEIGHTS, spec=SPEC, backend=FUSED if fault() else NATIVE, max_length=32)


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
    propose = drafter.propose
    trees = list[TokenTree]()

    def note(budget: RowBudget) -> ProposedTree:
        proposed = propose(budget)
        trees.append(proposed.tree.select(proposed.tree.best(budget.verify_width)))
        return proposed

    drafter.propose = note  # type: ignore[method-assign]
    found: list[Any] = []
    for seed in range(20):
        rounds = play(target, drafter, params=NARROW[name], seed=seed, num_tokens=20)
        plain = play(toy_target(None), Drafters(), params=NARROW[name], seed=seed, num_tokens=20)
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
    weights = playing.weights_of()
    tree = {"draft_width": 2, "depth": 3, "verify_width": 8, "search_share": 1.0}
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
