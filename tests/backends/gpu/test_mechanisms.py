"""What newer families compute besides Llama, on the device executor: torch's numbers, and bits of a row's own."""

import random

import numpy as np
import pytest
import torch

from forerun.core.config import SamplingParams
from forerun.model.executor import ForwardInput
from forerun.model.self_test import find_bit_fault
from tests.marks import in_turn, rest_slow
from tests.tiny import tiny_runner

pytest.importorskip("triton")

from forerun.backends.gpu.backend import TRITON
from tests.backends.gpu import test_decoder as decoders
from tests.backends.gpu.test_executor import (
    CLOSE,
    DTYPES,
    FEW_SLOTS,
    Pair,
    spec_of,
    text_pass,
    tree_pass,
    weights_of,
)

FAMILIES = ("gemma3_text", "granite", "olmo3", "smollm3", "glm4", "ministral3", "mistral", "phi3")


@pytest.mark.parametrize(("family", "dtype"), in_turn(list(FAMILIES), DTYPES, 5))
def test_every_buffer_is_torchs_after_every_kernel(family: str, dtype: torch.dtype, device: str) -> None:
    spec = spec_of(family)
    rng = random.Random(1)
    pair = Pair(spec, dtype, device)
    pair.read(20)
    assert pair.largest(tree_pass(7, 20, rng, spec.vocab_size, taps=(0, 1))) < CLOSE[dtype]
    assert pair.largest(text_pass(1, 20, rng, spec.vocab_size)) < CLOSE[dtype]


@pytest.mark.parametrize("family", rest_slow(["gemma3_text", "olmo3"], 1))
def test_wide_passes_behind_a_long_text_are_those_of_torch(family: str, device: str) -> None:
    spec = spec_of(family, window=140)
    rng = random.Random(2)
    pair = Pair(spec, torch.float32, device)
    pair.read(200)
    assert pair.largest(text_pass(40, 200, rng, spec.vocab_size)) < CLOSE[torch.float32]
    assert pair.largest(tree_pass(9, 200, rng, spec.vocab_size)) < CLOSE[torch.float32]


@pytest.mark.slow  # by default test_gemma_4
@pytest.mark.parametrize("family", ["gemma3_text", "olmo3"])
def test_left_out_sublayers_and_row_skips_are_those_of_torch(family: str, device: str) -> None:
    spec = spec_of(family)
    rng = random.Random(4)
    pair = Pair(spec, torch.float32, device)
    pair.read(6)
    row_skips = np.random.default_rng(0).random((5, 6)) < 0.4
    passes: list[ForwardInput] = [
        tree_pass(5, 6, rng, spec.vocab_size, skipped=frozenset({(1, "attention"), (1, "mlp")})),
        tree_pass(5, 6, rng, spec.vocab_size, row_skips=row_skips, taps=(0, 2)),
        tree_pass(5, 6, rng, spec.vocab_size),  # and nothing of it stays behind
    ]
    for inputs in passes:
        tried, reference = (executor.run(inputs) for executor in pair.executors)
        assert (tried.logits - reference.logits).abs().max() < 1e-4 * reference.logits.abs().max()


def test_capped_logits_are_those_of_torch(device: str) -> None:
    spec = spec_of("granite", logit_cap=2.0)
    rng = random.Random(1)
    pair = Pair(spec, torch.float32, device)
    pair.read(5)
    inputs = tree_pass(7, 5, rng, spec.vocab_size)
    assert 1.9 < pair.executors[1].run(inputs).logits.abs().max() < 2.0, "some logits are near the cap"
    assert pair.largest(inputs) < CLOSE[torch.float32]


@pytest.mark.slow  # by default test_executor
@pytest.mark.parametrize("family", ["gemma3_text", "olmo3", "ministral3"])
def test_the_bits_of_a_row_are_its_own(family: str, device: str) -> None:
    spec = spec_of(family, num_layers=1, window=15)
    weights = weights_of(spec, torch.bfloat16)
    runner = tiny_runner(spec, weights, backend=TRITON, capacity=FEW_SLOTS, device=device)
    assert find_bit_fault(runner) is None


@pytest.mark.slow  # by default test_decoder and the passes above
@pytest.mark.parametrize(
    ("family", "params"),
    [
        *((family, decoders.SAMPLED) for family in FAMILIES),
        ("gemma3_text", decoders.GREEDY),
        ("olmo3", decoders.FILTERED),
    ],
)
@torch.inference_mode()
def test_rounds_on_the_device_write_the_text_of_torch(family: str, params: SamplingParams, device: str) -> None:
    sizes: dict[str, object] = {"num_layers": 2, "vocab_size": 40, "sliding_layers": (0,), "unrotated_layers": (1,)}
    spec = spec_of(family, window=5, logit_cap=6.0 if family == "granite" else None, **sizes)
    decoders.Pair(device, spec=spec).require_text_of_torch(params)
