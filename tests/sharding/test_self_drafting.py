"""A target that several ranks share drafts for itself: the text, the sets and the accepted tokens of one rank."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Final

import pytest
import torch

from forerun.core.config import SamplingParams
from forerun.core.model_spec import ModelSpec
from forerun.core.sublayers import SkipSet
from forerun.decoding import drafters as drafters_module
from forerun.decoding.drafters import Drafters
from forerun.drafting import draft_tree
from forerun.drafting.layer_skip import search as search_module
from forerun.drafting.layer_skip.drafter import LayerSkipDrafter, rows_behind_text
from forerun.model.runner import Runner
from forerun.model.self_drafting import SharedCacheRunner
from tests.drafting.layer_skip.playing import GREEDY, SAMPLED, play
from tests.drafting.layer_skip.skip_costs import adapt_to_slow_passes
from tests.marks import in_turn, slow
from tests.sharding.thread_group import shared_runner
from tests.tiny import CAPACITY, Weights, random_weights, tiny_runner, tiny_spec
from tests.tiny_families import FAMILIES, UNSHARED, family_spec
from tests.varied import Varied, layer_skip

NUM_TOKENS: Final = 48  # past the window of the paper's search
DRAFTERS: Final = {
    search: layer_skip(
        search=search, depth=4, verify_width=8, adaptive=False, looks_up=False, min_mass=0.0, search_share=1.0
    )
    for search in ("off", "gated", "paper")
}


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a request wrote, and the set in use after it."""

    token_ids: list[int]
    num_accepted: int
    skipped: SkipSet


def told_by(target: Runner, drafter: Varied, params: SamplingParams) -> list[Told]:
    """Of two requests, the second of which begins with a part of the first's text."""
    own = LayerSkipDrafter(
        SharedCacheRunner(target), drafter.config, policy=drafter.policies.skip, tree=drafter.policies.tree
    )
    drafters: Drafters = adapt_to_slow_passes(own)
    prompt_ids = [1, 2, 0, 1]
    found = []
    for turn in range(2):
        rounds = play(target, drafters, prompt_ids, params, seed=turn, num_tokens=NUM_TOKENS)
        token_ids = [token for step in rounds for token in step.token_ids]
        accepted = sum(step.stats.num_accepted for step in rounds)
        found.append(Told(token_ids=token_ids, num_accepted=accepted, skipped=own.search.strategy.skipped))
        prompt_ids = [*prompt_ids, *token_ids[:9]]
    return found


@contextmanager
def opened(spec: ModelSpec, weights: Weights, num_ranks: int, drafter: Varied) -> Iterator[Runner]:
    capacity = CAPACITY + rows_behind_text(drafter.config, drafter.policies.skip)
    if num_ranks == 1:
        yield tiny_runner(spec, weights, exactness="exact", capacity=capacity)
    else:
        with shared_runner(spec, weights, num_ranks, capacity=capacity) as runner:
            yield runner


def check(
    spec: ModelSpec, seed: int, drafter: Varied, params: SamplingParams, ranks: range, patch: pytest.MonkeyPatch
) -> None:
    """By a clock that counts its readings, so that the gated search has the same time in every run."""
    weights = random_weights(spec, torch.Generator().manual_seed(seed), scale=0.5)
    found = []
    for num_ranks in (1, *ranks):
        clock = count()
        for module in (drafters_module, search_module, draft_tree):
            patch.setattr(module, "perf_counter", lambda clock=clock: 1e-3 * next(clock))
        with opened(spec, weights, num_ranks, drafter) as target:
            found.append(told_by(target, drafter, params))
    assert found[0][0].num_accepted > 0, "a drafter that is never right shows nothing"
    assert all(one == found[0] for one in found[1:])


@pytest.mark.parametrize(("search", "num_ranks"), in_turn(list(DRAFTERS), [2, 3, 4]))
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_ranks_write_the_text_of_one_and_find_its_sets(
    search: str, num_ranks: int, params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tiny_spec(random.Random(4), num_layers=6)
    check(spec, 1, DRAFTERS[search], params, range(num_ranks, num_ranks + 1), monkeypatch)


@slow
@pytest.mark.parametrize("search", DRAFTERS)
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in UNSHARED])
def test_they_do_so_in_every_family(family: str, search: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed, params in enumerate((GREEDY, SAMPLED)):
        spec = family_spec(random.Random(seed), family, num_layers=6)
        check(spec, seed, DRAFTERS[search], params, range(2, 4), monkeypatch)
