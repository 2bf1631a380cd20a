"""The native executor: one call for a pass, against the executor that runs op by op with the reference kernels."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from forerun.backends.cpu.backend import NATIVE
from forerun.backends.cpu.binding import fault
from forerun.backends.dtypes import runs_native
from forerun.backends.torch.backend import REFERENCE
from forerun.checkpoints.typed_weights import LoadedWeights
from forerun.core.model_spec import CacheFormat, ModelSpec, WeightFormat
from forerun.core.stop_flag import PassStopped, StopFlag, stopped_by
from forerun.core.sublayers import all_sublayers
from forerun.model.cache_rows import MOST_CODE
from forerun.model.executor import ForwardInput
from forerun.model.pass_times import stand_in, time_pass
from forerun.model.runner import Runner
from forerun.model.tree_cache import TreeCache
from forerun.speculation.tree import ancestry_matrix
from tests.backends.diff import Difference, diff_buffers
from tests.backends.torch.ops import random_parents
from tests.dense_reference import dense_logits
from tests.tiny import CAPACITY, Weights, poison_of, random_weights, tiny_runner, tiny_spec

pytestmark = pytest.mark.skipif(fault() is not None, reason=str(fault()))

STATUS = Path("/proc/self/status")

# Largest error of one op, relative to its buffer's largest element: products round inputs to the weight's own type.
RELATIVE: dict[tuple[torch.dtype, WeightFormat], float] = {
    (torch.float32, "plain"): 1e-5,
    (torch.bfloat16, "plain"): 1.5e-2,
    (torch.bfloat16, "int8"): 4e-2,
    (torch.bfloat16, "int4"): 4e-2,
    (torch.float32, "int8"): 4e-2,
}
KINDS = pytest.mark.parametrize(("dtype", "weight_format"), RELATIVE, ids=lambda value: str(value).rpartition(".")[2])


@pytest.fixture(params=[2, 3])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def random_model(seed: int, dtype: torch.dtype) -> tuple[ModelSpec, Weights]:
    spec = tiny_spec(random.Random(seed))
    return spec, random_weights(spec, torch.Generator().manual_seed(seed), dtype=dtype)


def random_pass(rng: random.Random, spec: ModelSpec, prefix_len: int) -> ForwardInput:
    """A tree behind the prefix; half of the passes skip some sublayers, half have rows that skip some of their own."""
    parents = random_parents(rng, rng.randint(1, 20))
    ancestry = ancestry_matrix(parents)
    sublayers = all_sublayers(spec.num_layers)
    return ForwardInput(
        token_ids=[rng.randrange(spec.vocab_size) for _ in parents],
        positions=[prefix_len + int(row.sum()) - 1 for row in ancestry],
        first_slot=prefix_len,
        prefix_len=prefix_len,
        ancestry=ancestry,
        num_logit_rows=rng.randint(0, len(parents)),
        skipped=frozenset(rng.sample(sublayers, rng.choice([0, rng.randrange(len(sublayers))]))),
        row_skips=rng.choice([None, np.array([[rng.random() < 0.5 for _ in sublayers] for _ in parents])]),
        taps=tuple(range(rng.randint(0, spec.num_layers))),
    )


def differences(
    seed: int, dtype: torch.dtype, weight_format: WeightFormat, cache_format: CacheFormat = "model"
) -> list[Difference]:
    """Every buffer of one tree pass behind a random prefix."""
    rng = random.Random(seed)
    spec, weights = random_model(seed, dtype)
    mine, theirs = (
        TreeCache(spec, CAPACITY, dtype=kind, device="cpu", format=cache_format) for kind in (dtype, torch.float32)
    )
    wide = {name: weight.float() for name, weight in weights.items()}
    with torch.inference_mode():
        executors = (
            NATIVE.executor(spec, LoadedWeights(weights, weight_format), mine),
            REFERENCE.executor(spec, LoadedWeights(wide, weight_format), theirs),
        )
        prefix_len = rng.choice([0, 1, 15, 16, 40])
        for cache in (mine, theirs):
            generator = torch.Generator().manual_seed(seed)
            for layer in range(spec.num_layers):
                shape = (prefix_len, spec.num_kv_heads, spec.head_dim)
                rounded = torch.randn(shape, generator=generator).to(dtype)
                cache.write(layer, 0, rounded, rounded.flip(0))
            cache.keys_LSKD[:, prefix_len + 30 :] = poison_of(cache.keys_LSKD.dtype)
    return diff_buffers(executors[0], mine, executors[1], theirs, random_pass(rng, spec, prefix_len))


@KINDS
@pytest.mark.parametrize("seed", range(6))
def test_every_buffer_is_the_references_after_every_op(
    seed: int, dtype: torch.dtype, weight_format: WeightFormat
) -> None:
    found = differences(seed, dtype, weight_format)
    assert {difference.op.kind for difference in found} >= {"embed", "norm"} or not found
    for difference in found:
        assert difference.relative <= RELATIVE[dtype, weight_format], difference


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(6))
def test_every_buffer_is_the_references_with_a_cache_in_8_bits(seed: int, dtype: torch.dtype) -> None:
    for difference in differences(seed, dtype, "plain", "int8"):
        one_code = 1 / MOST_CODE if difference.what in ("keys", "values") else 0.0  # where a rounding is nearly a tie
        assert difference.relative <= max(RELATIVE[dtype, "plain"], 1e-4) + one_code, difference


def test_the_comparison_sees_every_kind_of_op() -> None:
    kinds = {item.op.kind for seed in range(12) for item in differences(seed, torch.float32, "plain")}
    assert kinds == {"embed", "norm", "linear", "linear_add", "rope_append", "tree_attention", "silu_mul", "tap"}
    assert {"keys", "values"} <= {item.what for item in differences(0, torch.float32, "plain")}


@KINDS
@pytest.mark.parametrize("seed", range(3))
def test_fused_ops_and_threads_change_no_bit(
    seed: int, dtype: torch.dtype, weight_format: WeightFormat, num_threads: int
) -> None:
    rng = random.Random(seed)
    spec, weights = random_model(seed, dtype)
    runner = Runner(
        spec, LoadedWeights(weights, weight_format), backend=NATIVE, capacity=CAPACITY, dtype=dtype, device="cpu"
    )
    prefix = [rng.randrange(spec.vocab_size) for _ in range(rng.randrange(50))]
    inputs = random_pass(rng, spec, len(prefix))
    results = []
    for threads, observe in ((num_threads, None), (1, None), (num_threads, lambda op, buffer: None)):
        torch.set_num_threads(threads)
        runner.forget()
        runner.sync(prefix)
        runner.cache.reserve(len(inputs.token_ids))
        results.append(runner.forward(inputs, observe).logits)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("seed", range(8))
def test_logits_are_those_of_the_dense_formula(seed: int) -> None:
    rng = random.Random(seed)
    spec, weights = random_model(seed, torch.float32)
    runner = tiny_runner(spec, weights, backend=NATIVE)
    token_ids = [rng.randrange(spec.vocab_size) for _ in range(rng.randint(1, 60))]
    cut = rng.randint(0, len(token_ids) - 1)
    runner.sync(token_ids[:cut])
    logits = runner.extend(token_ids[cut:], num_logit_rows=len(token_ids) - cut)
    expected = dense_logits(spec, {name: weight.double() for name, weight in weights.items()}, token_ids)[cut:]
    torch.testing.assert_close(logits.double(), expected, atol=2e-4, rtol=0)


@pytest.mark.skipif(not STATUS.exists(), reason="the system does not tell how much memory is asked for")
def test_a_pass_of_one_row_over_a_long_context_asks_for_one_rows_memory() -> None:
    runner = long_runner()
    stand_in(runner.cache, 131_071)
    before = asked_bytes()
    time_pass(runner, 1)
    assert asked_bytes() - before < 50 << 20, "for sixteen rows it would be 136 MiB"


NO_MEMORY = """
import resource
import torch
from forerun.core.errors import ContextOverflowError
from forerun.model.pass_times import stand_in, time_pass
from tests.backends.cpu.test_executor import asked_bytes, long_runner

torch.set_num_threads(1)
runner = long_runner()
stand_in(runner.cache, 131_000)
most = asked_bytes() + (40 << 20)
resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
try:
    time_pass(runner, 16)
except ContextOverflowError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
runner.cache.truncate(131_000)
time_pass(runner, 16)
print("goes on")
"""


@pytest.mark.skipif(not STATUS.exists(), reason="the system does not tell how much memory is asked for")
@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="a sanitizer needs memory of its own")
def test_memory_that_is_not_there_is_an_error_and_not_the_end() -> None:
    done = subprocess.run([sys.executable, "-c", NO_MEMORY], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert "not enough memory left for a pass of 16 rows" in first
    assert second == "goes on"


def long_runner() -> Runner:
    """A model with many wide heads and a long context."""
    shape = {"num_kv_heads": 1, "num_heads": 64, "head_dim": 128, "num_layers": 1, "max_positions": 131_072}
    spec = tiny_spec(random.Random(3), **shape)
    weights = random_weights(spec, torch.Generator().manual_seed(3), dtype=torch.float32)
    runner = tiny_runner(spec, weights, backend=NATIVE, capacity=131_072)
    runner.extend([1], num_logit_rows=1)
    return runner


def asked_bytes() -> int:
    """What the process has asked of the system, in use or not."""
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith("VmSize:"))
    return int(line.split()[1]) << 10


def test_other_dtypes_are_left_to_torch() -> None:
    assert runs_native("float32", "cpu")
    assert not runs_native("float64", "cpu")
    assert not runs_native("float32", "cuda:0")


@pytest.mark.parametrize("threads", [1, 2])
def test_a_pass_that_is_given_up_computes_nothing(threads: int) -> None:
    spec, weights = random_model(1, torch.float32)
    runner = tiny_runner(spec, weights, backend=NATIVE)
    before = torch.get_num_threads()
    flag = StopFlag()
    torch.set_num_threads(threads)
    try:
        first, second = ([token % spec.vocab_size for token in range(start, start + 40)] for start in (0, 7))
        runner.append(first, num_logit_rows=0)
        keys = runner.cache.keys_LSKD.clone()  # type: ignore[attr-defined]
        rows = runner.executor.fused.buffer("x", 40).clone()
        flag.set()
        with stopped_by(flag), pytest.raises(PassStopped):
            runner.append(second, num_logit_rows=0)
        assert torch.equal(runner.cache.keys_LSKD, keys)
        assert torch.equal(runner.executor.fused.buffer("x", 40), rows)  # type: ignore[attr-defined]
        assert runner.cached_ids == first
    finally:
        torch.set_num_threads(before)
