"""Models like Gemma 4's E2B, E4B and 31B on the device executor, against torch's, and the bits of a row."""

import random

import numpy as np
import pytest
import torch

from forerun.core.config import SamplingParams
from forerun.model.self_test import find_bit_fault
from tests.backends.cpu.test_gemma_4 import LIKE, model_like
from tests.marks import in_turn, rest_slow
from tests.tiny import tiny_runner

pytest.importorskip("triton")

from forerun.backends.gpu.backend import TRITON
from tests.backends.gpu import test_decoder as decoders
from tests.backends.gpu.test_executor import CAPACITY, CLOSE, DTYPES, Pair, text_pass, tree_pass


@pytest.mark.parametrize(("size", "dtype"), in_turn(list(LIKE), DTYPES, 1))
def test_every_buffer_is_torchs_after_every_kernel(size: str, dtype: torch.dtype, device: str) -> None:
    spec = model_like(size, dtype)[0]
    rng = random.Random(1)
    pair = Pair(spec, dtype, device)
    pair.read(20)
    assert pair.largest(tree_pass(7, 20, rng, spec.vocab_size, taps=(0, 2))) < CLOSE[dtype]
    assert pair.largest(text_pass(1, 20, rng, spec.vocab_size)) < CLOSE[dtype]


@pytest.mark.slow  # by default test_mechanisms
def test_wide_passes_behind_a_long_text_are_those_of_torch(device: str) -> None:
    spec = model_like("E2B", torch.float32, window=140)[0]
    rng = random.Random(2)
    pair = Pair(spec, torch.float32, device)
    pair.read(200)
    assert pair.largest(text_pass(40, 200, rng, spec.vocab_size)) < CLOSE[torch.float32]


@pytest.mark.parametrize("size", rest_slow(["E2B", "31B"], 1))
def test_left_out_sublayers_and_row_skips_are_those_of_torch(size: str, device: str) -> None:
    """A layer's factor stands behind its MLP, behind its attention if that is left out, or behind neither."""
    spec = model_like(size, torch.float32)[0]
    rng = random.Random(4)
    pair = Pair(spec, torch.float32, device)
    pair.read(6)
    row_skips = np.random.default_rng(0).random((5, 2 * spec.num_layers)) < 0.4
    last = spec.num_layers - 1
    for inputs in (
        tree_pass(5, 6, rng, spec.vocab_size, skipped=frozenset({(0, "mlp"), (last, "attention"), (last, "mlp")})),
        tree_pass(5, 6, rng, spec.vocab_size, row_skips=row_skips, taps=(0, 2)),
        tree_pass(5, 6, rng, spec.vocab_size),  # and nothing of it stays behind
    ):
        tried, reference = (executor.run(inputs) for executor in pair.executors)
        assert (tried.logits - reference.logits).abs().max() < 1e-4 * reference.logits.abs().max()


@pytest.mark.slow
@pytest.mark.parametrize("size", ["E2B", "31B"])
def test_the_bits_of_a_row_are_its_own(size: str, device: str) -> None:
    spec, weights = model_like(size, torch.bfloat16)
    runner = tiny_runner(spec, weights, backend=TRITON, capacity=CAPACITY, device=device)
    assert find_bit_fault(runner) is None


@pytest.mark.slow
@pytest.mark.parametrize(("size", "params"), [("E2B", decoders.SAMPLED), ("31B", decoders.GREEDY)])
@torch.inference_mode()
def test_rounds_on_the_device_write_the_text_of_torch(size: str, params: SamplingParams, device: str) -> None:
    spec = model_like(size, torch.float32, vocab_size=40, window=5)[0]
    decoders.Pair(device, spec=spec).require_text_of_torch(params)
