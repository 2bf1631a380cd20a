"""Blocks of GGUF's types stand for the values that ggml's own package reads from them."""

import gguf
import numpy as np
import pytest
import torch

from forerun.model.gguf_block_types import BLOCKS, BlockType
from forerun.model.gguf_blocks import dequantise_blocks
from forerun.model.quantise import as_int4, as_plain, dequantise
from forerun.model.weights import BlockWeight, DenseWeight, StackedWeight
from tests.blocks import random_blocks

NUM_OUT = 37


def by_gguf(blocks_OB: torch.Tensor, block_type: BlockType) -> torch.Tensor:
    return torch.from_numpy(gguf.dequantize(blocks_OB.numpy(), gguf.GGMLQuantizationType[block_type]))


@pytest.mark.parametrize("block_type", BLOCKS)
def test_values_are_those_of_the_gguf_package_bit_for_bit(block_type: BlockType) -> None:
    blocks_OB = random_blocks(block_type)
    values_OI = dequantise_blocks(blocks_OB, block_type)
    assert values_OI.shape == (NUM_OUT, 3 * BLOCKS[block_type].num_elements)
    assert torch.equal(values_OI, by_gguf(blocks_OB, block_type))


@pytest.mark.parametrize("block_type", BLOCKS)
def test_so_are_values_of_any_bytes(block_type: BlockType) -> None:
    """Scales may be NaN, infinite or subnormal; the first and the last block have all bits 0 or 1."""
    num_bytes = BLOCKS[block_type].num_bytes
    blocks_OB = torch.randint(256, (2000, num_bytes), generator=torch.Generator().manual_seed(5), dtype=torch.uint8)
    blocks_OB[0] = 0
    blocks_OB[-1] = 255
    with np.errstate(all="ignore"):
        expected = by_gguf(blocks_OB, block_type)
    values_OI = dequantise_blocks(blocks_OB, block_type)
    assert ((values_OI == expected) | (values_OI.isnan() & expected.isnan())).all()


@pytest.mark.parametrize("block_type", BLOCKS)
def test_shapes_of_blocks_are_those_of_the_gguf_package(block_type: BlockType) -> None:
    assert tuple(BLOCKS[block_type]) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[block_type]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_plain_copy_is_rounded_once_from_float32(dtype: torch.dtype) -> None:
    """Its rows are read some at a time, so that no float32 copy of the whole is held."""
    blocks_OB = random_blocks("Q6_K", num_out=3000)
    weight = BlockWeight(blocks_OB=blocks_OB, block_type="Q6_K", dtype=dtype)
    assert torch.equal(as_plain(weight), by_gguf(blocks_OB, "Q6_K").to(dtype))


def test_weights_of_several_types_stand_one_under_another() -> None:
    first = BlockWeight(blocks_OB=random_blocks("Q4_K"), block_type="Q4_K")
    second = BlockWeight(blocks_OB=random_blocks("Q6_K", num_out=5), block_type="Q6_K")
    third = DenseWeight(values_OI=torch.ones(2, first.shape[1]))
    stacked = StackedWeight(parts=(first, second, third))
    assert stacked.shape == (NUM_OUT + 7, first.shape[1])
    expected = torch.cat([by_gguf(first.blocks_OB, "Q4_K"), by_gguf(second.blocks_OB, "Q6_K"), third.values_OI])
    assert torch.equal(dequantise(stacked), expected)
    assert torch.equal(as_plain(stacked), expected)


def test_q4_0_is_int4_with_a_zero_in_the_middle() -> None:
    weight = BlockWeight(blocks_OB=random_blocks("Q4_0"), block_type="Q4_0", dtype=torch.bfloat16)
    as_codes = as_int4(weight)
    assert torch.equal(dequantise(as_codes), dequantise(weight))
    assert as_codes.dtype is torch.bfloat16
