"""gpt-oss with experts in MXFP4: folders against transformers, and GGUF files against folders."""

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from forerun.backends.cpu.backend import NATIVE
from forerun.backends.cpu.binding import fault
from forerun.backends.torch.backend import FUSED, REFERENCE
from forerun.checkpoints.open import open_source
from forerun.checkpoints.source import CheckpointSource
from forerun.model.backend import ModelBackend
from forerun.model.executor import ForwardInput
from forerun.model.program import Op
from forerun.model.runner import Runner
from forerun.model.weights import BlockWeight
from tests.marks import rest_slow

pytest.importorskip("transformers")
pytest.importorskip("gguf")
from tests.golden import mxfp4_experts
from tests.golden.random_families import LENGTH
from tests.golden.test_random_families import largest_difference, runner_of

MAX_ERROR = 1e-9
MAX_ERROR_OF_CODES = 2e-3  # relative to the largest logit: inputs of codes are rounded to 16 bits
NEAR_TIE = 2e-3  # of the last chosen expert's score and the next one's: rounding may choose the other
SEEDS = rest_slow(range(20), 1)


def logits_of(source: CheckpointSource, kernels: ModelBackend, dtype: torch.dtype, text: list[int]) -> Tensor:
    spec = source.spec().for_length(LENGTH)
    runner = Runner(spec, source.weights(dtype=dtype), backend=kernels, capacity=LENGTH, dtype=dtype, device="cpu")
    return runner.extend(text, num_logit_rows=len(text))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_folder_gives_the_logits_of_transformers(seed: int, tmp_path: Path) -> None:
    model = mxfp4_experts.save(seed, tmp_path)
    for kernels in (REFERENCE, FUSED):
        assert largest_difference(model, runner_of(tmp_path, kernels, torch.float64), seed) <= MAX_ERROR, kernels.name


@pytest.mark.skipif(fault() is not None, reason=str(fault()))
@pytest.mark.parametrize("seed", SEEDS)
def test_the_native_kernels_differ_by_the_rounding_of_inputs(seed: int, tmp_path: Path) -> None:
    mxfp4_experts.save(seed, tmp_path)
    exact = runner_of(tmp_path, REFERENCE, torch.float64)
    native = runner_of(tmp_path, NATIVE, torch.float32)
    rng = random.Random(seed)
    num_chosen = exact.spec.num_chosen_experts
    leads = list[Tensor]()

    def look(op: Op, scores: Tensor) -> None:
        if op.writes == "router":
            ranked = scores.sort(-1, descending=True).values
            leads.append(ranked[:, num_chosen - 1] - ranked[:, num_chosen])

    text = [rng.randrange(exact.spec.vocab_size) for _ in range(LENGTH)]
    inputs = ForwardInput(
        token_ids=text, positions=list(range(LENGTH)), first_slot=exact.cache.reserve(LENGTH), prefix_len=0,
        num_logit_rows=LENGTH,
    )  # fmt: skip
    expected = exact.forward(inputs, look).logits
    ties = (torch.stack(leads) < NEAR_TIE).any(0).nonzero()[:, 0].tolist()
    num_sure = min([*ties, LENGTH])  # later rows attend to a row with other experts
    difference = (native.extend(text, num_logit_rows=LENGTH) - expected)[:num_sure].abs()
    assert num_sure == 0 or difference.max() <= MAX_ERROR_OF_CODES * expected.abs().max()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_gguf_file_has_the_folders_bits(seed: int, tmp_path: Path) -> None:
    mxfp4_experts.save(seed, tmp_path)
    folder = open_source(str(tmp_path))
    file = open_source(str(mxfp4_experts.write_gguf(tmp_path, tmp_path / "model.gguf")))
    for name in ("layers.1.experts.2.gate_up", "layers.0.experts.1.out"):
        (own, own_bias), (other, other_bias) = (
            each.weights(dtype=torch.float32).linear(name) for each in (file, folder)
        )
        assert isinstance(own, BlockWeight)
        assert isinstance(other, BlockWeight)
        assert torch.equal(own.blocks_OB, other.blocks_OB)
        torch.testing.assert_close(own_bias, other_bias)
    rng = random.Random(seed)
    text = [rng.randrange(folder.spec().vocab_size) for _ in range(LENGTH)]
    expected = logits_of(folder, REFERENCE, torch.float64, text)
    assert (logits_of(file, REFERENCE, torch.float64, text) - expected).abs().max() <= 2e-5 * expected.abs().max()
    assert file.spec().num_parameters == folder.spec().num_parameters
