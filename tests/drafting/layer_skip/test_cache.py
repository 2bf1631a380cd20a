"""One cache for target and draft: after every round it holds what the target alone would have computed, and nothing in
a round grows with the context."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from forerun.core.config import SamplingParams
from forerun.decoding.drafters import Drafters
from forerun.drafting.drafter import Drafter
from forerun.drafting.layer_skip.drafter import LayerSkipDrafter
from forerun.drafting.layer_skip.gated_strategy import GatedStrategy
from forerun.model.backend import ModelBackend
from forerun.model.runner import Runner
from tests.drafting.layer_skip.playing import (
    GREEDY,
    PROMPT,
    SAMPLED,
    SKIP_SETS,
    SPEC,
    drafter_on,
    num_accepted,
    start_request,
    target_for,
    weights_of,
)
from tests.marks import in_turn, rest_slow
from tests.model.kernel_sets import EXACT_SETS, NATIVE_SETS
from tests.tiny import Weights, poison_freed_slots, tiny_runner
from tests.varied import layer_skip

TREE = {"draft_width": 2, "depth": 4, "num_children": 3, "verify_width": 9, "search_share": 1.0, "adaptive": False}
CONFIGS = {
    "off": layer_skip(**TREE, search="off"),
    "gated": layer_skip(**TREE, search="gated"),
    "paper": layer_skip(**TREE, search="paper"),
    "int8 copy": layer_skip(**TREE, weights="int8"),
    "int4 copy": layer_skip(**TREE, search="off", weights="int4"),
}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


def worst_difference(target: Runner, weights: Weights, kernels: ModelBackend) -> float:
    """Between the cached rows and those of a fresh pass over the same text."""
    cache = target.cache
    length = len(target.cached_ids)
    assert (cache.committed_len, cache.num_tree) == (length, 0)
    fresh = tiny_runner(target.spec, weights, backend=kernels, capacity=length)
    fresh.sync(target.cached_ids)
    differences = [
        (ours[:, :length] - theirs).abs().max()
        for ours, theirs in ((cache.keys_LSKD, fresh.cache.keys_LSKD), (cache.values_LSKD, fresh.cache.values_LSKD))
    ]
    return float(torch.stack(differences).max())  # not a number if a forgotten row was kept


def check_every_round(
    name: str, kernels: ModelBackend, dtype: torch.dtype, params: SamplingParams, *, tolerance: float
) -> None:
    config = CONFIGS[name]
    weights = weights_of(dtype=dtype)
    target = target_for(config, weights, backend=kernels)
    poison_freed_slots(target)
    copy_of = None if config.config.weights == "plain" else weights
    drafter = drafter_on(target, config, copy_of=copy_of, skipped=SKIP_SETS["only attention"])
    rounds = []
    text = list(PROMPT)
    for step in start_request(target, drafter, PROMPT, params, seed=7, num_tokens=44):
        text += step.token_ids
        assert target.cached_ids == text[:-1]
        assert worst_difference(target, weights, kernels) <= tolerance, f"after {len(text)} tokens"
        rounds.append(step)
    assert num_accepted(rounds) > 0, "no draft row could have stayed"


@pytest.mark.parametrize(("name", "params"), in_turn(list(CONFIGS), [GREEDY, SAMPLED]))
@DTYPES
@pytest.mark.parametrize("kernels", EXACT_SETS)
def test_after_every_round_the_cache_has_the_bits_of_a_fresh_pass_over_the_text(
    name: str, params: SamplingParams, dtype: torch.dtype, kernels: ModelBackend
) -> None:
    check_every_round(name, kernels, dtype, params, tolerance=0.0)


class Allocations(TorchDispatchMode):
    """Bytes of the tensors that operators return in storage of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {leaf.untyped_storage().data_ptr() for leaf in tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        fresh = {leaf.untyped_storage().data_ptr(): leaf for leaf in tensors(result)}
        self.num_bytes += sum(leaf.untyped_storage().nbytes() for place, leaf in fresh.items() if place not in known)
        return result


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@contextmanager
def tracing() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


SHORT = 500
LONG = 7900
NUM_SLOTS = 8192
LONG_SPEC = replace(SPEC, max_positions=NUM_SLOTS)
SLACK = 4096  # bytes by which rounds may differ; one byte for each token of the context would be more


def bytes_of_a_round(target: Runner, drafter: Drafter, num_prompt: int) -> float:
    """What rounds behind a prompt of this length allocate, in Python and numpy at their peak and in torch in all: the
    median, since a list that has grown is now and then moved."""
    prompt_ids = [(7 * place + place // 13) % SPEC.vocab_size for place in range(num_prompt)]
    allocated: list[int] = []
    running = start_request(target, drafter, prompt_ids, GREEDY, seed=7, num_tokens=200)
    with Allocations():
        for _ in range(6):
            next(running)
    with tracing():
        for _ in range(14):
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            with Allocations() as torch_made:
                next(running)
            allocated.append(tracemalloc.get_traced_memory()[1] - before + torch_made.num_bytes)
    running.close()
    return median(allocated)


MEMORY_CONFIGS = {
    "drafts and probes": layer_skip(**TREE, search="gated"),
    "a rounded copy": layer_skip(**TREE, search="gated", weights="int8"),
    "drafts": layer_skip(**TREE, search="off"),
}


@pytest.mark.parametrize("kernels", NATIVE_SETS)
@pytest.mark.parametrize("name", rest_slow([*MEMORY_CONFIGS, "none"], 1))
def test_nothing_that_a_round_allocates_grows_with_the_context(name: str, kernels: ModelBackend) -> None:
    weights = weights_of(spec=LONG_SPEC, dtype=torch.float32)
    target = tiny_runner(LONG_SPEC, weights, backend=kernels, capacity=NUM_SLOTS)
    drafter: Drafter = Drafters()
    if name != "none":
        config = MEMORY_CONFIGS[name]
        copy_of = None if config.config.weights == "plain" else weights
        drafter = drafter_on(target, config, skipped=SKIP_SETS["only MLPs"], copy_of=copy_of)
    short, long = (bytes_of_a_round(target, drafter, length) for length in (SHORT, LONG))
    if isinstance(drafter, LayerSkipDrafter) and isinstance(drafter.search.strategy, GatedStrategy):
        assert drafter.search.strategy.num_scored > 0, "nothing rode along"
    assert long <= short + SLACK, f"{long} bytes at {LONG} tokens, {short} at {SHORT}"
