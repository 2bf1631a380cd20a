"""Shard plans: nothing of a model is lost or doubled, and parts are equal."""

import random

import pytest

from forerun.checkpoints.known_models import known_models
from forerun.core.errors import ConfigError
from forerun.core.model_spec import ModelSpec
from forerun.sharding.plan import ShardPlan, plan_shards
from tests.marks import rest_slow
from tests.tiny import plain_spec, tiny_spec


def check(spec: ModelSpec, plans: tuple[ShardPlan, ...]) -> None:
    """Every real element is on one rank, in order; a query head is served by its own key and value head."""
    group = spec.num_heads // spec.num_kv_heads
    seen_heads = []
    seen_features = []
    seen_tokens = []
    for plan in plans:
        local = plan.local(spec)
        served = local.num_heads // local.num_kv_heads
        assert local.num_heads == served * local.num_kv_heads
        for place in range(plan.heads.num_real):
            head = plan.heads.start + place
            seen_heads.append(head)
            assert plan.kv_head_idxs[place // served] == head // group
        seen_features += range(plan.intermediate.start, plan.intermediate.start + plan.intermediate.num_real)
        seen_tokens += range(plan.vocab.start, plan.vocab.start + plan.vocab.num_real)
    assert seen_heads == list(range(spec.num_heads))
    assert seen_features == list(range(spec.intermediate_size))
    assert seen_tokens == list(range(spec.vocab_size))
    assert len({(plan.heads.size, plan.kv_heads.size, plan.intermediate.size, plan.vocab.size) for plan in plans}) == 1


@pytest.mark.parametrize("num_ranks", rest_slow([3, 8, 1, 2, 4, 5, 6, 7], 2))
@pytest.mark.parametrize("name", known_models())
def test_models_that_people_run_are_shared_without_loss(name: str, num_ranks: int) -> None:
    spec = known_models()[name]
    for group_size in (1, 128):
        plans = plan_shards(spec, num_ranks, group_size=group_size)
        check(spec, plans)
        assert all(plan.intermediate.start % group_size == 0 for plan in plans)


@pytest.mark.parametrize("seed", range(300))
def test_any_model_is_shared_by_any_number_of_ranks(seed: int) -> None:
    rng = random.Random(seed)
    num_kv_heads = rng.randint(1, 9)
    spec = tiny_spec(
        rng,
        num_kv_heads=num_kv_heads,
        num_heads=num_kv_heads * rng.randint(1, 9),
        intermediate_size=rng.randint(1, 300),
        vocab_size=rng.randint(1, 300),
    )
    check(spec, plan_shards(spec, rng.randint(1, 17), group_size=rng.choice([1, 32, 128])))


@pytest.mark.parametrize("num_ranks", [0, -1, 65])
def test_impossible_numbers_of_ranks_are_refused(num_ranks: int) -> None:
    with pytest.raises(ConfigError, match="1 to 64"):
        plan_shards(plain_spec(), num_ranks)
