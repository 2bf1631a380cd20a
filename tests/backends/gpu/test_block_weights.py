"""What the GPU's kernels multiply by, of weights that are blocks of codes."""

import pytest
import torch

from forerun.backends.gpu.passes.packed_linear import multipliable
from forerun.model.gguf_block_types import BLOCKS, BlockType
from forerun.model.quantise import dequantise
from forerun.model.weights import BlockWeight, DenseWeight, Int4Weight, StackedWeight
from tests.blocks import random_blocks


def test_q4_0_is_multiplied_as_int4_without_a_plain_copy() -> None:
    weight = BlockWeight(blocks_OB=random_blocks("Q4_0"), block_type="Q4_0", dtype=torch.bfloat16)
    int4 = multipliable(weight)
    assert isinstance(int4, Int4Weight)
    assert torch.equal(dequantise(int4), dequantise(weight))


@pytest.mark.parametrize("block_type", [name for name in BLOCKS if name != "Q4_0"])
def test_other_blocks_become_plain(block_type: BlockType) -> None:
    weight = BlockWeight(blocks_OB=random_blocks(block_type), block_type=block_type, dtype=torch.bfloat16)
    for held in (weight, StackedWeight(parts=(weight,))):
        plain = multipliable(held)
        assert isinstance(plain, DenseWeight)
        assert torch.equal(plain.values_OI, dequantise(weight).to(torch.bfloat16))
