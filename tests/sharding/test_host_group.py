"""Ranks that share memory: what they exchange arrives whole and in order, and native passes equal the whole model's."""

import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import pytest
import torch

from forerun.backends.cpu import host_group
from forerun.backends.cpu.backend import NATIVE
from forerun.backends.cpu.binding import sharing_fault
from forerun.backends.cpu.host_group import HostGroup, shared_memory
from forerun.backends.dtypes import runs_native
from forerun.checkpoints.typed_weights import LoadedWeights
from forerun.core.errors import RankLostError
from forerun.core.model_spec import CacheFormat, WeightFormat
from forerun.core.threads import on_one_thread
from forerun.model.tree_cache import TreeCache
from forerun.model.weights import WeightSource
from forerun.sharding.executor import SharedExecutor
from forerun.sharding.plan import plan_shards
from forerun.sharding.weights import ShardedWeights
from tests.sharding.test_shared_pass import FAMILIES, passes
from tests.tiny import CAPACITY, random_weights, tiny_spec
from tests.tiny_families import FAMILIES as ALL_FAMILIES
from tests.tiny_families import UNSHARED, family_spec

pytestmark = pytest.mark.skipif(
    not runs_native("float32", "cpu") or sharing_fault() is not None, reason="no native kernels, or not on Linux"
)
NEW_FAMILIES = [
    name for name in ALL_FAMILIES if not name.startswith("olmo") and name not in UNSHARED
]  # their ranks use torch's kernels
MAX_ERROR: Final = {torch.float32: 1e-4, torch.bfloat16: 0.2}
MAX_ERROR_OF_CODES: Final = 0.3  # inputs are rounded to 8 bits by groups, which begin elsewhere on other ranks
ResultT = TypeVar("ResultT")


def on_ranks(num_ranks: int, work: Callable[[HostGroup], ResultT]) -> list[ResultT]:
    """What `work` gives on every rank, each a thread of this process."""
    descriptor = shared_memory(num_ranks)
    groups = [HostGroup(descriptor, rank, num_ranks) for rank in range(num_ranks)]
    os.close(descriptor)
    with ThreadPoolExecutor(num_ranks) as pool:
        return list(pool.map(work, groups))


@pytest.mark.parametrize("seed", range(6))
def test_everything_arrives_in_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_group, "PLACE_BYTES", 1024)  # small, so that most of it takes several turns
    rng = random.Random(seed)
    num_ranks = rng.randint(1, 5)
    shapes = [(rng.randint(1, 9), rng.randint(1, 400)) for _ in range(40)]

    def exchange(group: HostGroup) -> None:
        for number, (num_rows, num_columns) in enumerate(shapes):
            part = torch.full((num_rows, num_columns), float(1000 * group.rank + number))
            joined = group.join_columns(part)
            assert torch.equal(joined, torch.cat([part - 1000.0 * (group.rank - rank) for rank in range(num_ranks)], 1))
            total = group.add_partials(part, torch.ones_like(part))
            assert float(total[0, 0]) == 1 + sum(1000 * rank + number for rank in range(num_ranks))

    on_ranks(num_ranks, exchange)


def test_nobody_waits_for_a_lost_rank() -> None:
    def exchange(group: HostGroup) -> str:
        if group.rank == 1:
            threading.Timer(0.1, group.lose).start()
            return "lost"
        with pytest.raises(RankLostError, match="rank 0 of 2"):
            group.join_columns(torch.zeros(1, 1))
        return "told"

    assert on_ranks(2, exchange) == ["told", "lost"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("weight_format", ["plain", "int8", "int4"])
@pytest.mark.parametrize("seed", range(4 + len(NEW_FAMILIES)))
def test_native_ranks_give_the_logits_of_the_whole_model(
    seed: int, weight_format: WeightFormat, dtype: torch.dtype
) -> None:
    rng = random.Random(seed)
    cache_format: CacheFormat = "int8" if seed % 4 == 3 else "model"
    sizes: dict[str, object] = {"num_heads": 8, "num_kv_heads": 2, "intermediate_size": 128, "hidden_size": 64}
    if seed < 4:
        spec = tiny_spec(rng, **{**rng.choice(FAMILIES), "head_dim": 8, **sizes})
    else:
        spec = family_spec(rng, NEW_FAMILIES[seed - 4], **sizes)
    tensors = random_weights(spec, torch.Generator().manual_seed(seed), dtype=dtype)
    plans = plan_shards(spec, rng.randint(2, 4), group_size=32)
    inputs = passes(spec, rng)

    def weights() -> WeightSource:
        return LoadedWeights(dict(tensors), weight_format)

    alone = NATIVE.executor(spec, weights(), TreeCache(spec, CAPACITY, dtype=dtype, device="cpu", format=cache_format))
    expected = [alone.run(one).logits.clone() for one in inputs]

    def run(group: HostGroup) -> list[torch.Tensor]:
        plan = plans[group.rank]
        cache = TreeCache(plan.local(spec), CAPACITY, dtype=dtype, device="cpu", format=cache_format)
        own = ShardedWeights(weights(), spec, plan)
        executor = SharedExecutor(spec, own, cache, backend=NATIVE, plan=plan, group=group)
        return [on_one_thread(lambda one=one: executor.run(one).logits.clone()) for one in inputs]

    ranks = on_ranks(len(plans), run)
    for logits in ranks:
        for got, wanted, first in zip(logits, expected, ranks[0], strict=True):
            assert torch.equal(got, first), "a row is the same on every rank"
            is_plain = weight_format == "plain" and cache_format == "model"
            most = MAX_ERROR[dtype] if is_plain else MAX_ERROR_OF_CODES
            torch.testing.assert_close(got, wanted, atol=most, rtol=0.0)
