"""The device executor: the same numbers as torch op by op, and rows whose bits are their own."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from forerun.checkpoints.typed_weights import LoadedWeights
from forerun.core.model_spec import ModelSpec, WeightFormat
from forerun.core.sublayers import SkipSet
from forerun.model.executor import Executor, ForwardInput
from forerun.model.runner import Runner
from forerun.model.self_test import find_bit_fault
from forerun.speculation.tree import ancestry_matrix
from tests.backends.diff import diff_buffers
from tests.marks import in_turn, rest_slow
from tests.tiny import Weights, random_weights, tiny_runner, tiny_spec
from tests.tiny_families import family_spec

pytest.importorskip("triton")

from forerun.backends.gpu.backend import TRITON
from forerun.backends.gpu.executor import DeviceExecutor, num_splits_for
from forerun.backends.gpu.kernel_parts import IS_EMULATED
from forerun.backends.torch.backend import REFERENCE
from forerun.model.tree_cache import TreeCache

SHAPES: dict[str, dict[str, object]] = {
    "llama": {"qk_norm": False, "qkv_bias": False, "tied_embeddings": True},
    "qwen2": {"qk_norm": False, "qkv_bias": True, "out_bias": True, "mlp_bias": True, "tied_embeddings": False},
    "qwen3": {"qk_norm": True, "qkv_bias": False, "tied_embeddings": False},
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CAPACITY = 300
FEW_SLOTS = 48  # of a text of 12 tokens with three siblings each: more than a tile of rows
CLOSE = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}  # of the largest element, after one op


def spec_of(shape: str, **changes: object) -> ModelSpec:
    """One of SHAPES, or a family of `tiny_families`."""
    fixed: dict[str, object] = {
        "hidden_size": 48, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16,
        "intermediate_size": 40, "vocab_size": 75, "max_positions": CAPACITY,
    }  # fmt: skip
    if shape not in SHAPES:
        return replace(family_spec(random.Random(3), shape, **{"num_layers": 3, **fixed}), **changes)  # type: ignore[arg-type]
    return tiny_spec(random.Random(3), **{**fixed, "num_layers": 2, **SHAPES[shape], **changes})


def weights_of(spec: ModelSpec, dtype: torch.dtype) -> Weights:
    return random_weights(spec, torch.Generator().manual_seed(5), dtype=dtype)


def text_pass(num_rows: int, start: int, rng: random.Random, vocab_size: int) -> ForwardInput:
    return ForwardInput(
        token_ids=[rng.randrange(vocab_size) for _ in range(num_rows)],
        positions=list(range(start, start + num_rows)),
        first_slot=start,
        prefix_len=start,
        num_logit_rows=num_rows,
    )


def tree_pass(num_rows: int, start: int, rng: random.Random, vocab_size: int, **more: object) -> ForwardInput:
    parents = [-1, *(rng.randrange(row) for row in range(1, num_rows))]
    ancestry = ancestry_matrix(parents)
    return ForwardInput(
        token_ids=[rng.randrange(vocab_size) for _ in range(num_rows)],
        positions=[start + int(row.sum()) - 1 for row in ancestry],
        first_slot=start,
        prefix_len=start,
        ancestry=ancestry,
        num_logit_rows=num_rows,
        **more,  # type: ignore[arg-type]
    )


@contextmanager
def padded_as_on_a_gpu(executor: Executor) -> Iterator[None]:
    """Spare rows as in recorded passes, and nothing recorded; for passes with an observer."""
    assert isinstance(executor, DeviceExecutor)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor.graphs, "records", True)
        patch.setattr(executor, "_record_kind", lambda shape, spare_slot: None)
        yield


class Pair:
    """The device executor and torch's, each with a cache that holds the same text."""

    def __init__(self, spec: ModelSpec, dtype: torch.dtype, device: str, weight_format: WeightFormat = "plain") -> None:
        self.spec = spec
        self.caches = [TreeCache(spec, CAPACITY, dtype=dtype, device=device) for _ in range(2)]
        weights = {name: weight.to(device) for name, weight in weights_of(spec, dtype).items()}
        self.executors: list[Executor] = [
            kernels.executor(spec, LoadedWeights(weights, weight_format), cache)
            for cache, kernels in zip(self.caches, (TRITON, REFERENCE), strict=True)
        ]

    def read(self, length: int) -> None:
        """Begin with a text, both with the same bits."""
        self.executors[1].run(text_pass(length, 0, random.Random(length), self.spec.vocab_size))
        for part in ("keys_LSKD", "values_LSKD"):
            getattr(self.caches[0], part).copy_(getattr(self.caches[1], part))

    def largest(self, inputs: ForwardInput) -> float:
        tried, reference = self.executors
        with padded_as_on_a_gpu(tried):
            found = diff_buffers(tried, self.caches[0], reference, self.caches[1], inputs)
        inner = "router" if self.spec.num_experts else "gated"
        assert {"x", "q", "mixed", inner, "logits", "keys", "values"} <= {difference.what for difference in found}
        return max(difference.relative for difference in found)


@pytest.mark.parametrize(("shape", "dtype"), in_turn(list(SHAPES), DTYPES))
def test_every_buffer_is_torchs_after_every_kernel(shape: str, dtype: torch.dtype, device: str) -> None:
    spec = spec_of(shape)
    rng = random.Random(1)
    pair = Pair(spec, dtype, device)
    pair.read(10)
    assert pair.largest(tree_pass(7, 10, rng, spec.vocab_size, taps=(0, 1))) < CLOSE[dtype]
    assert pair.largest(text_pass(1, 10, rng, spec.vocab_size)) < CLOSE[dtype]


@pytest.mark.parametrize("weight_format", ["int8", "int4"])
def test_quantised_weights_are_those_of_torch(weight_format: WeightFormat, device: str) -> None:
    spec = spec_of("llama")
    rng = random.Random(1)
    pair = Pair(spec, torch.float32, device, weight_format)
    pair.read(5)
    assert pair.largest(tree_pass(4, 5, rng, spec.vocab_size)) < CLOSE[torch.float32]


def test_a_tree_behind_a_long_text_sees_all_of_it(device: str) -> None:
    spec = spec_of("llama", num_layers=1)
    rng = random.Random(2)
    pair = Pair(spec, torch.float32, device)
    pair.read(260)
    assert pair.largest(tree_pass(9, 260, rng, spec.vocab_size)) < CLOSE[torch.float32]


def test_wide_passes_are_those_of_torch(device: str) -> None:
    spec = spec_of("llama", num_layers=1)
    rng = random.Random(2)
    pair = Pair(spec, torch.float32, device)
    pair.read(3)
    assert pair.largest(text_pass(40, 3, rng, spec.vocab_size)) < CLOSE[torch.float32]


def test_left_out_sublayers_and_row_skips_are_those_of_torch(device: str) -> None:
    spec = spec_of("llama", num_layers=3)
    rng = random.Random(4)
    pair = Pair(spec, torch.float32, device)
    pair.read(6)
    skipped: SkipSet = frozenset({(1, "attention"), (1, "mlp")})
    row_skips = np.random.default_rng(0).random((5, 6)) < 0.4
    for inputs in (
        tree_pass(5, 6, rng, spec.vocab_size, skipped=skipped),
        tree_pass(5, 6, rng, spec.vocab_size, row_skips=row_skips, taps=(0, 2)),
        tree_pass(5, 6, rng, spec.vocab_size),  # and nothing of it stays behind
    ):
        tried, reference = (executor.run(inputs) for executor in pair.executors)
        assert (tried.logits - reference.logits).abs().max() < 1e-4 * reference.logits.abs().max()
        assert (tried.features is None) == (reference.features is None) == (not inputs.taps)
        if tried.features is not None and reference.features is not None:
            assert (tried.features - reference.features).abs().max() < 1e-4 * reference.features.abs().max()


def runner_of(spec: ModelSpec, dtype: torch.dtype, device: str, *, capacity: int = CAPACITY) -> Runner:
    return tiny_runner(spec, weights_of(spec, dtype), backend=TRITON, capacity=capacity, device=device)


@pytest.mark.parametrize("dtype", rest_slow([torch.bfloat16, torch.float32], 1), ids=str)
def test_the_bits_of_a_row_are_its_own(dtype: torch.dtype, device: str) -> None:
    assert find_bit_fault(runner_of(spec_of("qwen2", num_layers=1), dtype, device, capacity=FEW_SLOTS)) is None


def test_a_recorded_pass_gives_what_the_first_one_gave(device: str) -> None:
    runner = runner_of(spec_of("qwen2"), torch.bfloat16, device)
    rng = random.Random(6)
    runner.sync([rng.randrange(runner.spec.vocab_size) for _ in range(8)])
    plain = tree_pass(6, 8, rng, runner.spec.vocab_size)
    for inputs in (plain, replace(plain, taps=(1,)), replace(plain, taps=(0, 1))):
        num_passes = 2 if IS_EMULATED else 4  # compiled, recorded, replayed
        first, *others = [runner.forward(inputs) for _ in range(num_passes)]
        for again in others:
            assert torch.equal(again.logits, first.logits)
            assert inputs == plain or torch.equal(again.features, first.features)


@pytest.mark.gpu
def test_on_a_gpu_nothing_is_emulated() -> None:
    assert not IS_EMULATED


def test_the_bound_of_splits_is_a_power_of_two_that_covers_the_prefix() -> None:
    assert [num_splits_for(length) for length in (0, 127, 128, 255, 256, 384, 640)] == [2, 2, 2, 2, 2, 4, 8]
