"""Models with experts on the device executor, against torch's, and the bits of a row whatever the others choose."""

import random

import numpy as np
import pytest
import torch

from forerun.core.config import SamplingParams
from forerun.core.model_spec import WeightFormat
from forerun.model.self_test import find_bit_fault
from tests.marks import rest_slow
from tests.tiny import tiny_runner

pytest.importorskip("triton")

from forerun.backends.gpu.backend import TRITON
from forerun.backends.gpu.passes.expert_pairs import ExpertPairs, choose_experts
from forerun.backends.torch.expert_steps import choose
from tests.backends.gpu import test_decoder as decoders
from tests.backends.gpu.test_executor import CLOSE, FEW_SLOTS, Pair, spec_of, text_pass, tree_pass, weights_of


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        ("qwen3_moe", torch.float32),
        ("gpt_oss", torch.bfloat16),
        pytest.param("gpt_oss", torch.float32, marks=pytest.mark.slow),
        pytest.param("gpt_oss", torch.float16, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_every_buffer_is_torchs_after_every_kernel(family: str, dtype: torch.dtype, device: str) -> None:
    spec = spec_of(family)
    rng = random.Random(1)
    pair = Pair(spec, dtype, device)
    pair.read(20)
    assert pair.largest(tree_pass(7, 20, rng, spec.vocab_size, taps=(0, 1))) < CLOSE[dtype]
    assert pair.largest(text_pass(1, 20, rng, spec.vocab_size)) < CLOSE[dtype]


@pytest.mark.parametrize("weight_format", ["int8", "int4"])
def test_quantised_experts_are_those_of_torch(weight_format: WeightFormat, device: str) -> None:
    spec = spec_of("gpt_oss", num_layers=1, sliding_layers=())
    rng = random.Random(1)
    pair = Pair(spec, torch.float32, device, weight_format)
    pair.read(5)
    assert pair.largest(tree_pass(4, 5, rng, spec.vocab_size)) < CLOSE[torch.float32]


@pytest.mark.parametrize("num_rows", rest_slow([40, 64], 1))
def test_experts_of_many_rows_are_those_of_torch(num_rows: int, device: str) -> None:
    """Some experts have more rows than a tile."""
    spec = spec_of("gpt_oss", num_layers=1, sliding_layers=(), num_experts=3, num_chosen_experts=2)
    rng = random.Random(2)
    pair = Pair(spec, torch.float32, device)
    pair.read(3)
    assert pair.largest(text_pass(num_rows, 3, rng, spec.vocab_size)) < CLOSE[torch.float32]


@pytest.mark.slow  # by default test_executor and test_gemma_4
def test_left_out_sublayers_and_row_skips_are_those_of_torch(device: str) -> None:
    spec = spec_of("gpt_oss")
    rng = random.Random(4)
    pair = Pair(spec, torch.float32, device)
    pair.read(6)
    row_skips = np.random.default_rng(0).random((5, 6)) < 0.4
    for inputs in (
        tree_pass(5, 6, rng, spec.vocab_size, skipped=frozenset({(1, "attention"), (1, "mlp"), (2, "mlp")})),
        tree_pass(5, 6, rng, spec.vocab_size, row_skips=row_skips, taps=(0, 2)),
        tree_pass(5, 6, rng, spec.vocab_size),  # and nothing of it stays behind
    ):
        tried, reference = (executor.run(inputs) for executor in pair.executors)
        assert (tried.logits - reference.logits).abs().max() < 1e-4 * reference.logits.abs().max()


@pytest.mark.parametrize(("num_rows", "num_experts", "num_chosen"), [(1, 32, 4), (5, 3, 3), (70, 5, 4)])
def test_pairs_lie_in_the_order_of_experts(num_rows: int, num_experts: int, num_chosen: int) -> None:
    spec = spec_of("gpt_oss", num_experts=num_experts, num_chosen_experts=num_chosen)
    pairs = ExpertPairs.for_model(spec, max_rows=num_rows + 2, dtype=torch.float32, device="cpu")
    scores = torch.randn(num_rows + 2, num_experts, generator=torch.Generator().manual_seed(num_rows))
    scores[0, 1] = scores[0, 0] = 9.0  # of equal ones the first comes first
    lengths = torch.ones(num_rows + 2, dtype=torch.int32)
    lengths[num_rows - 1 :] = 0 if num_rows > 1 else 1  # a spare row
    choose_experts(scores, lengths, pairs, num_rows=num_rows, num_chosen=num_chosen, overlaps=False)
    count = num_rows * num_chosen
    chosen, shares = choose(scores[:num_rows], num_chosen)
    chosen[0, :2] = torch.tensor([0, 1])
    chosen[lengths[:num_rows] == 0] = num_experts
    assert pairs.chosen[:count].equal(chosen.flatten().int())
    torch.testing.assert_close(pairs.shares[:count], shares.flatten())
    order = [pair for expert in range(num_experts) for pair in range(count) if pairs.chosen[pair] == expert]
    assert pairs.order[: len(order)].tolist() == order
    assert pairs.places[order].tolist() == list(range(len(order)))
    ends = [sum(int(pairs.chosen[pair]) <= expert for pair in range(count)) for expert in range(num_experts)]
    assert pairs.bounds.view(-1, 2).tolist() == [list(pair) for pair in zip([0, *ends[:-1]], ends, strict=True)]


@pytest.mark.slow  # by default test_executor, and tests/backends/test_experts
def test_the_bits_of_a_row_are_its_own(device: str) -> None:
    spec = spec_of("gpt_oss", num_layers=1, window=15)
    weights = weights_of(spec, torch.bfloat16)
    runner = tiny_runner(spec, weights, backend=TRITON, capacity=FEW_SLOTS, device=device)
    assert find_bit_fault(runner) is None


@pytest.mark.slow
@pytest.mark.parametrize("params", [decoders.SAMPLED, decoders.GREEDY])
@torch.inference_mode()
def test_rounds_on_the_device_write_the_text_of_torch(params: SamplingParams, device: str) -> None:
    spec = spec_of("gpt_oss", num_layers=2, vocab_size=40, sliding_layers=(0,), window=5)
    decoders.Pair(device, spec=spec).require_text_of_torch(params)
