"""Several levels in one pass: what the draft said after some tokens is guessed when they come again."""

import math
import random
from typing import Final

import pytest
import torch

from forerun.core.config import SamplingParams
from forerun.drafting.foresight import Foresight
from forerun.drafting.guessed_tree import GuessedTree
from forerun.drafting.policies import RemotePolicy, TreePolicy
from forerun.drafting.remote.messages import Setup
from forerun.engine.drafter_process import grow_with
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.tree import TokenTree
from tests.tiny import plain_spec, random_weights, tiny_runner

WIDTH: Final = 8
CYCLE: Final = [3, 5, 2, 7, 4]  # what this draft always says


def guessed(*, foresees: bool = True) -> GuessedTree:
    policy = TreePolicy(min_mass=0.0, looks_up=False)
    return GuessedTree(policy, verify_width=WIDTH, draft_width=4, horizon=64, keeps_subtree=True, foresees=foresees)


def follower_of(token: int) -> int:
    return CYCLE[(CYCLE.index(token) + 1) % len(CYCLE)] if token in CYCLE else CYCLE[0]


def play_pass(tree: GuessedTree) -> int:
    """One pass of the draft that says the cycle; the tree's depth after it."""
    batch = tree.next_batch()
    ids = [[follower_of(tree.tree.token_ids[node]), 9] for node in batch]
    tree.add_children(batch, ids, [[math.log(0.9), math.log(0.05)]] * len(batch))
    return max(depth for depth, log_prob in zip(tree.tree.depths, tree.tree.log_probs, strict=True) if log_prob > -3)


def test_what_was_said_before_gives_several_levels_a_pass() -> None:
    tree = guessed()
    plain = guessed(foresees=False)
    depths = []
    plain_depths = []
    for each, found in ((tree, depths), (plain, plain_depths)):
        each.reset(CYCLE[:1])
        found += [play_pass(each) for _ in range(6)]
    assert plain_depths == [1, 2, 3, 4, 5, 6]
    assert depths[:4] == plain_depths[:4], "nothing was said before"
    assert depths[5] >= depths[4] + 3, "a row for every foreseen level"


@pytest.mark.parametrize("seed", range(8))
def test_guesses_know_the_noise_of_the_place_they_are_for(seed: int) -> None:
    """Kept without noise, as the draft's own probabilities, and ranked with another place's."""
    noise = KeyedNoise(seed, 50)
    token_ids = list(range(10, 14))
    plain = [math.log(share) for share in (0.4, 0.3, 0.2, 0.05)]
    foresight = Foresight()
    tree = TokenTree(3)
    foresight.reset([1, 2, 3], noise)
    noise_N = noise.rows([3])[0, token_ids].tolist()
    foresight.told(tree, [0], [token_ids], [[value + added for value, added in zip(plain, noise_N, strict=True)]])
    foresight.advance([8, 1, 2, 3])
    noise_N = noise.rows([7])[0, token_ids].tolist()
    totals = {token: value + added for token, value, added in zip(token_ids, plain, noise_N, strict=True)}
    ranked = sorted(totals, key=totals.__getitem__, reverse=True)
    assert [token for token, _ in foresight.guess(tree, 0)] == ranked[:3]
    assert all(value <= 0.0 for _, value in foresight.guess(tree, 0))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_tree_that_foresees_says_what_the_model_says(seed: int, temperature: float) -> None:
    """Every node of a proposal has the chance that the draft gives it on its own path, however it came to the tree."""
    rng = random.Random(seed)
    spec = plain_spec(vocab_size=11)
    runner = tiny_runner(spec, random_weights(spec, torch.Generator().manual_seed(seed)))
    vocab_size = runner.spec.vocab_size
    noise = KeyedNoise(seed, vocab_size) if temperature else None
    params = SamplingParams(temperature=temperature, seed=seed)
    prompt = [rng.randrange(4) for _ in range(12)]
    trees = []
    for foresees in (False, True):
        policy = RemotePolicy(calibrates=False, foresees=foresees)
        setup = Setup(
            target_vocab_size=vocab_size, verify_width=4, draft_width=8, tree=TreePolicy(looks_up=False), policy=policy
        )  # fmt: skip
        grower = grow_with(runner, setup)
        found = []
        for _ in range(2):  # the second time much was said before
            grower.reset(prompt, params, noise)
            for _ in range(3):
                while grower.prefill():
                    pass
                for _ in range(12):
                    grower.expand()
                best = grower.tree.select(grower.tree.best(6))
                found.append({tuple(best.path_tokens(node)): best.log_probs[node] for node in range(len(best))})
                first = max(grower.tree.children(0).values(), key=grower.tree.log_probs.__getitem__)
                grower.advance([grower.tree.token_ids[first]])
        trees.append(found)
    for plain, foreseeing in zip(*trees, strict=True):
        assert plain.keys() == foreseeing.keys()
        assert all(math.isclose(plain[path], foreseeing[path], abs_tol=1e-4) for path in plain)
