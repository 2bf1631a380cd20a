"""Ranks that each choose from their part of the vocabulary choose what one that sees all of it does, to the bit."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pytest
import torch
from torch import Tensor

from forerun.backends.cpu.backend import NATIVE
from forerun.backends.torch.backend import REFERENCE
from forerun.core.errors import NumericalError
from forerun.core.model_spec import ModelSpec
from forerun.model.backend import ModelBackend
from forerun.model.executor import ForwardInput, ForwardOutput, TokenChoice
from forerun.model.tree_cache import TreeCache
from forerun.sampling.noise import KeyedNoise
from forerun.sampling.sample import BestTokens, Choices, widened
from forerun.sharding.executor import SharedExecutor
from forerun.sharding.plan import plan_shards
from tests.sharding.thread_group import ThreadGroup, on_ranks
from tests.tiny import tiny_spec

BACKENDS: Final = {"reference": REFERENCE, "native": NATIVE}


class Given:
    """A backend whose passes give these logits: of one rank, its columns."""

    def __init__(self, backend: ModelBackend, logits_TN: Tensor) -> None:
        self._logits_TN = logits_TN
        self.best_tokens = backend.best_tokens

    def executor(self, *_: object) -> "Given":
        return self

    def run(self, *_: object) -> ForwardOutput:
        return ForwardOutput(logits=self._logits_TN)


def on_all_ranks(
    spec: ModelSpec,
    logits_TV: Tensor,
    choice: TokenChoice,
    positions: Sequence[int],
    num_ranks: int,
    backend: ModelBackend,
) -> list[BestTokens]:
    """What every rank says of all logits; those of the padding are the largest, and may not be chosen."""
    plans = plan_shards(spec, num_ranks)
    padded_TN = torch.full((len(logits_TV), plans[0].vocab.padded), 1e30, dtype=logits_TV.dtype)
    padded_TN[:, : spec.vocab_size] = logits_TV
    inputs = ForwardInput(
        token_ids=[0] * len(positions), positions=[place - 1 for place in positions], first_slot=0, prefix_len=0,
        num_logit_rows=len(positions), choice=choice,
    )  # fmt: skip

    def run(group: ThreadGroup) -> BestTokens:
        plan = plans[group.rank]
        cache = TreeCache(plan.local(spec), 64, dtype=torch.float32, device="cpu")
        given = Given(backend, padded_TN[:, plan.vocab.start : plan.vocab.stop].contiguous())
        executor = SharedExecutor(spec, given, cache, backend=given, plan=plan, group=group)  # type: ignore[arg-type]
        best = executor.run(inputs).best
        assert best is not None
        return best

    return on_ranks(num_ranks, run)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("seed", range(20))
def test_each_rank_knows_what_the_whole_row_says(name: str, seed: int) -> None:
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    spec = replace(tiny_spec(rng), vocab_size=rng.choice([3, 17, 40, 333]))
    num_rows = rng.randint(1, 9)
    temperature = rng.choice([1.0, 0.6, 1.7])
    logits_TV = 3 * torch.randn(num_rows, spec.vocab_size, generator=generator)
    if rng.random() < 0.5:
        logits_TV = logits_TV.round()  # ties, which go to the lowest id
    logits_TV[torch.rand(logits_TV.shape, generator=generator) < 0.2] = -math.inf
    logits_TV[:, rng.randrange(spec.vocab_size)] = 1.0
    positions = [rng.randrange(5000) for _ in range(num_rows)]
    drawn = rng.choice([None, rng.getrandbits(64)])
    noise = None if drawn is None else KeyedNoise(drawn, spec.vocab_size).at(positions)
    expected = BACKENDS[name].best_tokens(widened(logits_TV), noise, temperature=temperature)
    choice = TokenChoice(seed=drawn, temperature=temperature)
    for best in on_all_ranks(spec, logits_TV, choice, positions, rng.randint(1, 5), BACKENDS[name]):
        assert best == expected


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("column", [0, 39])
def test_a_fault_in_one_part_is_a_fault_of_the_row(broken: float, column: int) -> None:
    spec = replace(tiny_spec(random.Random(0)), vocab_size=40)
    logits_TV = torch.zeros(2, 40)
    logits_TV[1, column] = broken
    (best, *_) = on_all_ranks(spec, logits_TV, TokenChoice(seed=None, temperature=1.0), [4, 5], 3, REFERENCE)
    with pytest.raises(NumericalError, match="row 1"):
        Choices.of(best)
    assert best.totals[0] == 0.0
