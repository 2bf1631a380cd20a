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
from forerun.model.runner import Runner
from forerun.model.weights import BlockWeight
from tests.marks import rest_slow

pytest.importorskip("transformers")
pytest.importorskip("gguf")
from tests.golden import mxfp4_experts
from tests.golden.random_families import LENGTH
from tests.golden.test_random_families import largest_difference, runner_of

MAX_ERROR = 1e-9
MAX_ERROR_OF_CODES = 1e-3  # relative to the largest logit: inputs of codes are rounded to 16 bits
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
    if fault() is None:
        assert largest_difference(model, runner_of(tmp_path, NATIVE, torch.float32), seed) <= MAX_ERROR_OF_CODES


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
