"""MXFP4 tensors of safetensors become GGUF's blocks with the same values."""

import pytest
import torch

from forerun.checkpoints.huggingface.mxfp4 import mxfp4_weight
from forerun.core.errors import CheckpointError
from forerun.model.quantise import dequantise

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def random_tensors() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    blocks_OGB = torch.randint(256, (7, 5, 16), generator=generator, dtype=torch.uint8)
    scales_OG = torch.randint(255, (7, 5), generator=generator, dtype=torch.uint8)
    scales_OG[0] = torch.tensor([0, 1, 2, 253, 254])
    return blocks_OGB, scales_OG


def test_a_value_is_the_4_bit_float_times_a_power_of_two() -> None:
    """As transformers has it: the low nibble of a byte comes first."""
    blocks_OGB, scales_OG = random_tensors()
    codes = torch.stack((blocks_OGB & 15, blocks_OGB >> 4), -1).flatten(2).int()
    expected = torch.ldexp(E2M1[codes].double(), scales_OG[:, :, None].int() - 127).flatten(1)
    weight = mxfp4_weight(blocks_OGB, scales_OG, torch.bfloat16)
    assert weight.shape == (7, 160)
    assert torch.equal(dequantise(weight), expected.float())


def test_a_scale_that_is_nan_is_refused() -> None:
    blocks_OGB, scales_OG = random_tensors()
    scales_OG[3, 2] = 255
    with pytest.raises(CheckpointError, match="finite"):
        mxfp4_weight(blocks_OGB, scales_OG, torch.bfloat16)
