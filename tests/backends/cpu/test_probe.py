"""The native kernels one by one: together they are the pass, and the loops of each tier add up what they say."""

import random

import pytest
import torch

from forerun.backends.cpu.backend import NATIVE
from forerun.backends.cpu.binding import fault
from forerun.backends.cpu.executor import NativeExecutor
from forerun.backends.cpu.probe import INPUT_NUMBERS, NativeProbe
from forerun.checkpoints.typed_weights import LoadedWeights
from forerun.model.executor import ForwardInput
from forerun.model.tree_cache import TreeCache
from tests.tiny import CAPACITY, random_weights, tiny_spec
from tests.tiny_families import family_spec

pytestmark = pytest.mark.skipif(fault() is not None, reason=str(fault()))
NUM_ROWS = 5
PASS = ForwardInput(
    token_ids=[1, 2, 0, 1, 2], positions=list(range(NUM_ROWS)), first_slot=0, prefix_len=0, num_logit_rows=2
)


@pytest.fixture(params=[None, "qwen3_next"])
def executor(request: pytest.FixtureRequest) -> NativeExecutor:
    rng = random.Random(3)
    spec = family_spec(rng, request.param) if request.param else tiny_spec(rng, num_layers=2, vocab_size=50)
    weights = LoadedWeights(random_weights(spec, torch.Generator().manual_seed(3), dtype=torch.float32))
    made = NATIVE.executor(spec, weights, TreeCache(spec, CAPACITY, dtype=torch.float32, device="cpu"))
    assert isinstance(made, NativeExecutor)
    return made


def test_the_calls_of_a_pass_leave_the_cache_as_the_pass_does(executor: NativeExecutor) -> None:
    executor.run(PASS)
    storage = executor.lowering.cache.keys_LSKD
    after_pass = storage[:, :NUM_ROWS].clone()
    assert after_pass.abs().sum() > 0
    storage[:, :NUM_ROWS] = 0.0
    for call in executor.calls(PASS):
        call()
    assert torch.equal(storage[:, :NUM_ROWS], after_pass)


def test_times_and_work_are_of_the_same_ops(executor: NativeExecutor) -> None:
    probe = NativeProbe(executor)
    assert len(probe.time_ops(PASS).ops_s) == len(probe.work(PASS)) > 10


def test_loops_count_their_products_on_every_thread(executor: NativeExecutor, tier: str) -> None:
    probe = NativeProbe(executor)
    assert probe.tier == tier
    for kind in INPUT_NUMBERS:
        once = probe.multiply_adds(kind, 1)
        assert (once > 0) == (tier != "portable")
        assert probe.multiply_adds(kind, 30) == 30 * once
