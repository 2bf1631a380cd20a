"""Several ranks give the logits of one: every family, dense and quantised, padded or not."""

import random
from collections.abc import Callable
from typing import Final

import pytest
import torch
from torch import Tensor

from forerun.backends.torch.backend import REFERENCE
from forerun.checkpoints.typed_weights import LoadedWeights
from forerun.core.errors import ConfigError
from forerun.core.model_spec import ModelSpec, WeightFormat
from forerun.model.executor import ForwardInput
from forerun.model.tree_cache import TreeCache
from forerun.model.weights import WeightSource
from forerun.sharding.executor import SharedExecutor
from forerun.sharding.plan import plan_shards
from forerun.sharding.weights import ShardedWeights
from forerun.speculation.tree import ancestry_matrix
from tests.backends.torch.ops import random_parents
from tests.marks import rest_slow
from tests.sharding.thread_group import ThreadGroup, on_ranks
from tests.tiny import CAPACITY, random_weights, tiny_spec
from tests.tiny_families import FAMILIES as ALL_FAMILIES
from tests.tiny_families import MIXED, UNSHARED, family_spec

MAX_ERROR: Final = 1e-10
NEW_FAMILIES: Final = tuple(name for name in ALL_FAMILIES if name not in UNSHARED)
FAMILIES: Final = (
    {"family": "llama", "qkv_bias": False, "qk_norm": False},
    {"family": "qwen2", "qkv_bias": True, "qk_norm": False},
    {"family": "qwen3", "qkv_bias": False, "qk_norm": True},
)


def passes(spec: ModelSpec, rng: random.Random) -> list[ForwardInput]:
    """A prompt, and a tree behind it, some of whose rows leave a sublayer out."""
    num_prompt = rng.randint(1, 12)
    parents = random_parents(rng, rng.randint(1, 8))
    ancestry = ancestry_matrix(parents)
    generator = torch.Generator().manual_seed(rng.randrange(99))
    skips = torch.rand(len(parents), 2 * spec.num_layers, generator=generator) < 0.2
    return [
        ForwardInput(
            token_ids=[rng.randrange(spec.vocab_size) for _ in range(num_prompt)],
            positions=list(range(num_prompt)),
            first_slot=0,
            prefix_len=0,
            num_logit_rows=rng.choice([0, 1, num_prompt]),
        ),
        ForwardInput(
            token_ids=[rng.randrange(spec.vocab_size) for _ in parents],
            positions=[num_prompt + int(row.sum()) - 1 for row in ancestry],
            first_slot=num_prompt,
            prefix_len=num_prompt,
            ancestry=ancestry,
            num_logit_rows=len(parents),
            row_skips=skips.numpy() if rng.random() < 0.3 else None,
        ),
    ]


def shared_logits(
    spec: ModelSpec, weights: Callable[[], WeightSource], inputs: list[ForwardInput], num_ranks: int, group_size: int
) -> list[list[Tensor]]:
    """The logits of every pass, on every rank."""
    plans = plan_shards(spec, num_ranks, group_size=group_size)

    def run(group: ThreadGroup) -> list[Tensor]:
        plan = plans[group.rank]
        cache = TreeCache(plan.local(spec), CAPACITY, dtype=torch.float64, device="cpu")
        own = ShardedWeights(weights(), spec, plan)
        executor = SharedExecutor(spec, own, cache, backend=REFERENCE, plan=plan, group=group)
        return [executor.run(one).logits.clone() for one in inputs]

    return on_ranks(num_ranks, run)


def check(seed: int, family: str | None = None) -> None:
    rng = random.Random(seed)
    weight_format: WeightFormat = rng.choice(("plain", "plain", "int8", "int4"))
    wide = {"head_dim": 8, "num_heads": 9, "num_kv_heads": 3, "intermediate_size": 100}  # parts begin within a group
    sizes: dict[str, object] = wide if weight_format == "int4" else {"head_dim": rng.choice([2, 4, 8])}
    spec = family_spec(rng, family, **sizes) if family else tiny_spec(rng, **{**rng.choice(FAMILIES), **sizes})
    tensors = random_weights(spec, torch.Generator().manual_seed(seed))

    def weights() -> WeightSource:
        return LoadedWeights(dict(tensors), weight_format)

    inputs = passes(spec, rng)
    cache = TreeCache(spec, CAPACITY, dtype=torch.float64, device="cpu")
    alone = REFERENCE.executor(spec, weights(), cache)
    expected = [alone.run(one).logits.clone() for one in inputs]
    for logits in shared_logits(spec, weights, inputs, rng.randint(1, 6), rng.choice([1, 4, 32])):
        for got, wanted in zip(logits, expected, strict=True):
            torch.testing.assert_close(got, wanted, atol=MAX_ERROR, rtol=0)


@pytest.mark.parametrize("seed", range(60))
def test_ranks_give_the_logits_of_the_whole_model(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("family", UNSHARED)
def test_experts_and_layers_without_attention_are_not_divided(family: str) -> None:
    why = "which has experts" if family not in MIXED else "whose layers do not all have plain attention"
    with pytest.raises(ConfigError, match=f"a {family} model, {why}, cannot be shared by several ranks"):
        plan_shards(family_spec(random.Random(1), family), 2)


@pytest.mark.parametrize("family", NEW_FAMILIES)
@pytest.mark.parametrize("seed", rest_slow(range(60), 1))
def test_ranks_do_so_in_every_family(seed: int, family: str) -> None:
    check(seed, family)


@pytest.mark.slow
def test_many_more_of_them() -> None:
    for seed in range(1000, 3000):
        check(seed)
