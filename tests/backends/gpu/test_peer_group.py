"""Ranks with Triton's kernels, each a process of its own: logits of one rank, rows of their own, and a lost rank."""

import random
import time
from dataclasses import replace
from typing import Final

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from forerun.backends.gpu.backend import TRITON
from forerun.backends.gpu.peer_group import PeerGroup
from forerun.checkpoints.typed_weights import LoadedWeights
from forerun.core.errors import RankLostError
from forerun.core.model_spec import ModelSpec, WeightFormat
from forerun.model.executor import Executor, ForwardInput
from forerun.model.quantise import group_size_of
from forerun.model.rank_group import sum_in_order
from forerun.model.tree_cache import TreeCache
from forerun.sharding.executor import SharedExecutor
from forerun.sharding.plan import plan_shards
from forerun.sharding.weights import ShardedWeights
from tests.backends.gpu.peers import run_ranks
from tests.backends.gpu.test_executor import CAPACITY, spec_of, text_pass, tree_pass, weights_of

NUM_PROMPT: Final = 6
NUM_TREE: Final = 5
NUM_WIDE: Final = 40  # rows of a pass that is not recorded
PARTED: Final = {"intermediate_size": 96}  # of groups of 32, two for the one rank and one for the other
CASES: Final[tuple[tuple[int, str, dict[str, int], torch.dtype, WeightFormat, float], ...]] = (
    (2, "qwen3", {"num_layers": 1}, torch.float32, "plain", 1e-5),
)
MORE_CASES: Final = (
    (3, "qwen3", {"num_layers": 1}, torch.float32, "plain", 1e-5),
    (2, "llama", {"num_layers": 1, **PARTED}, torch.float32, "int4", 1e-5),
    (2, "qwen2", {"num_layers": 3}, torch.float32, "plain", 1e-5),
    (2, "llama", {"num_layers": 1}, torch.bfloat16, "plain", 0.1),
    (4, "qwen2", {"num_layers": 1}, torch.float32, "int8", 1e-5),
    (2, "gemma3_text", {}, torch.float32, "plain", 1e-5),
    (2, "granite", {}, torch.float32, "plain", 1e-5),
)


def has_gpus(num_ranks: int) -> bool:
    return torch.cuda.device_count() >= num_ranks


def passes_of(spec: ModelSpec) -> list[ForwardInput]:
    """A prompt, a tree behind it, and the tree's root alone."""
    rng = random.Random(3)
    prompt = text_pass(NUM_PROMPT, 0, rng, spec.vocab_size)
    tree = tree_pass(NUM_TREE, NUM_PROMPT, rng, spec.vocab_size)
    return [
        prompt,
        tree,
        replace(tree, token_ids=tree.token_ids[:1], positions=tree.positions[:1], ancestry=None, num_logit_rows=1),
    ]


def more_passes_of(spec: ModelSpec) -> list[ForwardInput]:
    """The tree again and again, so that the pass is recorded, and a long text."""
    rng = random.Random(4)
    return [*2 * passes_of(spec)[1:2], text_pass(NUM_WIDE, NUM_PROMPT, rng, spec.vocab_size)]


def logits_of(executor: Executor, spec: ModelSpec, device: str) -> list[Tensor]:
    """Of all passes, on a GPU also of those that would take the interpreter too long."""
    more = [] if device == "cpu" else more_passes_of(spec)
    return [executor.run(inputs).logits.cpu().clone() for inputs in [*passes_of(spec), *more]]


def shared_executor(group: PeerGroup, spec: ModelSpec, dtype: torch.dtype, weight_format: WeightFormat) -> Executor:
    device = str(group.device)
    weights = LoadedWeights({name: one.to(device) for name, one in weights_of(spec, dtype).items()}, weight_format)
    group_size = 1 if weight_format == "plain" else group_size_of(spec.intermediate_size)
    plan = plan_shards(spec, group.num_ranks, group_size=group_size)[group.rank]
    cache = TreeCache(plan.local(spec), CAPACITY, dtype=dtype, device=device)
    own = ShardedWeights(weights, spec, plan)
    return SharedExecutor(spec, own, cache, backend=TRITON, plan=plan, group=group)


def exchange_all(group: PeerGroup) -> None:
    """Parts of many sizes, of which most take several turns, by ranks that are now and then late."""
    rng = random.Random(1)
    naps = random.Random(group.rank)
    for number in range(6):
        num_rows = rng.randint(1, 9)
        num_columns = rng.randint(1, 100)
        time.sleep(naps.choice([0.0, 0.02]))
        part = torch.full((num_rows, num_columns), float(100 * group.rank + number), device=group.device)
        others = [part - 100.0 * (group.rank - rank) for rank in range(group.num_ranks)]
        assert torch.equal(group.join_columns(part), torch.cat(others, 1))
        assert torch.equal(group.add_partials(part, torch.ones_like(part)), sum_in_order(others, torch.ones_like(part)))


def shared_logits(group: PeerGroup, spec: ModelSpec, dtype: torch.dtype, weight_format: WeightFormat) -> list[Tensor]:
    exchange_all(group)
    return logits_of(shared_executor(group, spec, dtype, weight_format), spec, group.device.type)


@pytest.mark.parametrize(
    ("num_ranks", "shape", "sizes", "dtype", "weight_format", "most"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE_CASES)],
)
def test_ranks_give_the_logits_of_the_whole_model(
    num_ranks: int, shape: str, sizes: dict[str, int], dtype: torch.dtype, weight_format: WeightFormat, most: float,
    device: str,
) -> None:  # fmt: skip
    if device == "cuda" and not has_gpus(num_ranks):
        pytest.skip(f"fewer than {num_ranks} GPUs")
    spec = spec_of(shape, **sizes)
    weights = {name: one.to(device) for name, one in weights_of(spec, dtype).items()}
    cache = TreeCache(spec, CAPACITY, dtype=dtype, device=device)
    expected = logits_of(TRITON.executor(spec, LoadedWeights(weights, weight_format), cache), spec, device)
    ranks = run_ranks(num_ranks, device, shared_logits, spec, dtype, weight_format, constants={"PLACE_BYTES": 256})
    for logits in ranks:
        for got, wanted, first in zip(logits, expected, ranks[0], strict=True):
            assert torch.equal(got, first), "a row is the same on every rank"
            torch.testing.assert_close(got, wanted, atol=most, rtol=0)
        _, tree, root, *more = logits
        assert torch.equal(tree[:1], root), "a row is the same in any company"
        assert all(torch.equal(tree, again) for again in more[:2]), "and each time, recorded or not"


def wait_in_vain(group: PeerGroup) -> str:
    """Rank 1 ends before the last exchange."""
    group.join_columns(torch.zeros(1, 1))
    if group.rank == 1:
        return "ended"
    for _ in range(2):  # the second one takes no waiting
        with pytest.raises(RankLostError, match="rank 0 of 2 lost another one"):
            group.join_columns(torch.zeros(1, 1))
    return "told"


@pytest.mark.slow  # one process: test_add_partials
def test_nobody_waits_for_ever() -> None:
    constants = {"MOST_POLLS": 3000}  # some seconds, for the other process to come at all
    assert run_ranks(2, "cpu", wait_in_vain, constants=constants) == ["told", "ended"]
