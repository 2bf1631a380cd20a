"""Rows of blocks of GGUF's types."""

import numpy as np
import torch

from forerun.model.block_types import BLOCKS, BlockType


def random_blocks(
    block_type: BlockType, *, seed: int = 1, num_out: int = 37, blocks_in_row: int = 3, scale: float = 1.0
) -> torch.Tensor:
    """Rows of random bytes with finite float16 scales: every code, scale and minimum occurs, negative scales too."""
    num_bytes = BLOCKS[block_type].num_bytes
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (num_out * blocks_in_row, num_bytes), dtype=np.uint8)
    floats = rng.normal(scale=scale, size=(len(blocks), 2)).astype(np.float16).view(np.uint8)
    if block_type == "Q6_K":
        blocks[:, 208:210] = floats[:, :2]
    else:
        width = 2 if block_type in ("Q4_0", "Q5_0", "Q8_0") else 4
        blocks[:, :width] = floats[:, :width]
    return torch.from_numpy(blocks.reshape(num_out, -1))
