"""How a weight is divided between programs: by its shape and format alone, so that no row's sums depend on others."""

from dataclasses import dataclass
from math import ceil
from typing import Final

import torch

from forerun.core.model_spec import WeightFormat

MULTIPROCESSORS: Final = 132  # Of an H100.
ENOUGH_PROGRAMS: Final = 250  # About two for each of them keep its memory busy.
LEAST_BLOCKS: Final = 4  # A program with fewer blocks of inputs waits more than it loads; half as many of 256.
WIDE_OUT: Final = 128
WIDE_IN: Final = 256
LEAST_OUT: Final = 16  # Outputs of one matrix instruction of a warp.


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """What a program does.

    Args:
        block_out: outputs of a program.
        block_in: inputs at a time.
        num_splits: programs that share the inputs of an output.
        num_stages: blocks of inputs that are under way at a time, the one at work included.
    """

    block_out: int
    block_in: int
    num_splits: int
    num_warps: int
    num_stages: int


def choose_tiles(
    num_out: int, num_in: int, *, weight_format: WeightFormat, compute: torch.dtype, head_dim: int | None = None
) -> Tiles:
    """Tiles with blocks of 8 or 16 KiB, in enough programs to occupy a large GPU.

    Narrow blocks of outputs would load the rows too often from the cache, wide ones need more splits.
    """
    block_out = 128 if weight_format == "int4" and compute != torch.float32 else 64
    block_in = 128
    if compute == torch.float32 and weight_format != "int4":
        block_in = 32  # Without matrix instructions a whole block is held in registers.
    if weight_format == "int4" and compute != torch.float32 and num_in % (2 * block_in) == 0:
        block_in *= 2  # A step's own instructions, beside those for its weights, are shared by more weights.
    if head_dim is not None:
        if weight_format == "plain" and head_dim > block_out:
            block_in = max(16, block_in * block_out // head_dim)
        block_out = head_dim
    while block_out > LEAST_OUT and block_out // 2 >= num_out:
        block_out //= 2
    num_tiles, num_blocks = -(-num_out // block_out), -(-num_in // block_in)
    least_blocks = LEAST_BLOCKS if block_in < WIDE_IN else LEAST_BLOCKS // 2
    num_splits = most_even_splits(num_tiles, num_blocks, least_blocks)
    num_warps = min(4, max(1, block_out // LEAST_OUT))
    if block_out >= WIDE_OUT and weight_format != "int4":
        num_warps = 8  # Fewer warps lack the registers for two tiles of rows.
    return Tiles(
        block_out=block_out, block_in=block_in, num_splits=num_splits, num_warps=num_warps,
        num_stages=3 if compute == torch.float32 or block_in == WIDE_IN else 4,
    )  # fmt: skip


def most_even_splits(num_tiles: int, num_blocks: int, least_blocks: int) -> int:
    """The splits with which the busiest multiprocessor has the least to do.

    A program has its blocks, the time of one more to start, and if there are splits that of another one to join them.
    """
    most = max(1, num_blocks // least_blocks)
    enough = [splits for splits in range(1, most + 1) if num_tiles * splits >= ENOUGH_PROGRAMS] or [most]
    return min(
        enough,
        key=lambda splits: ceil(num_tiles * splits / MULTIPROCESSORS) * (ceil(num_blocks / splits) + 1 + (splits > 1)),
    )
