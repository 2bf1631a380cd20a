"""Rows of blocks of GGUF's types."""

import math
from typing import Final

import numpy as np
import torch

from forerun.model.gguf_block_types import BLOCKS, BlockType

PLACES: Final = {  # of the float16 numbers of a block, unless only the first is one
    "Q4_1": (0, 4), "Q5_1": (0, 4), "Q4_K": (0, 4), "Q5_K": (0, 4), "Q6_K": (208, 210), "Q2_K": (80, 84),
    "Q3_K": (108, 110),
}  # fmt: skip


def random_blocks(
    block_type: BlockType, *, seed: int = 1, num_out: int = 37, blocks_in_row: int = 3, scale: float = 1.0
) -> torch.Tensor:
    """Rows of random bytes with finite scales: every code, scale and minimum occurs, negative scales too, but of MXFP4
    only eight powers of two around `scale`."""
    num_bytes = BLOCKS[block_type].num_bytes
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (num_out * blocks_in_row, num_bytes), dtype=np.uint8)
    floats = rng.normal(scale=scale, size=(len(blocks), 2)).astype(np.float16).view(np.uint8)
    if block_type == "MXFP4":
        blocks[:, 0] = blocks[:, 0] % 8 + (122 + round(math.log2(scale)))
        return torch.from_numpy(blocks.reshape(num_out, -1))
    first, last = PLACES.get(block_type, (0, 2))
    blocks[:, first:last] = floats[:, : last - first]
    return torch.from_numpy(blocks.reshape(num_out, -1))
