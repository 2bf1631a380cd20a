"""The steps of one runner, played by another one with the same weights."""

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import PromptLookup
from forerun.drafting.prompt_lookup import PromptLookupDrafter
from forerun.model.backend import ModelBackend
from forerun.model.executor import ForwardOutput, Step
from forerun.model.runner import Runner
from tests.model.kernel_sets import KERNEL_SETS
from tests.tiny import decode_ids, random_weights, tiny_runner, tiny_spec

NUM_REQUESTS = 4


def record(runner: Runner) -> list[tuple[Step, Tensor]]:
    """Every step that this runner plays from now on, and its logits."""
    played: list[tuple[Step, Tensor]] = []
    play = runner.play

    def note(step: Step, **rest: object) -> ForwardOutput:
        output = play(step, **rest)  # type: ignore[arg-type]
        played.append((step, output.logits.clone()))
        return output

    runner.play = note  # type: ignore[method-assign, assignment]
    return played


def text_and_prompts(rng: random.Random, vocab_size: int) -> Sequence[list[int]]:
    """Prompts of which each begins with a part of the one before, so that caches are cut and read on."""
    prompts = [[rng.randrange(vocab_size) for _ in range(12)]]
    for _ in range(NUM_REQUESTS - 1):
        prompts.append([*prompts[-1][: rng.randrange(12)], *prompts[0][:6], *prompts[0][:6]])
    return prompts


@pytest.mark.parametrize("backend", KERNEL_SETS)
@pytest.mark.parametrize("seed", range(4))
def test_whoever_plays_the_same_steps_holds_the_same_cache_and_computes_the_same_logits(
    backend: ModelBackend, seed: int
) -> None:
    rng = random.Random(seed)
    spec = tiny_spec(rng, vocab_size=12)
    weights = random_weights(spec, torch.Generator().manual_seed(seed), dtype=torch.float32)
    leader, follower = (tiny_runner(spec, weights, backend=backend) for _ in range(2))  # type: ignore[arg-type]
    played = record(leader)
    for prompt in text_and_prompts(rng, 12):
        drafter = PromptLookupDrafter(PromptLookup(verify_width=5, adaptive=False))
        decode_ids(leader, drafter, prompt, SamplingParams(temperature=1.0), seed=seed, num_tokens=12)
    for step, logits in played:
        assert torch.equal(follower.play(step).logits, logits)
    assert sum(step.move is not None and len(step.move.rows) > 1 for step, _ in played) > 0, "nothing was accepted"
    assert torch.equal(follower.cache.storage_2LSKD, leader.cache.storage_2LSKD)
    assert (follower.cache.committed_len, follower.cache.num_tree) == (
        leader.cache.committed_len,
        leader.cache.num_tree,
    )
