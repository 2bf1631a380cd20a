"""Divides a weight between programs, by its shape and format only, so that a row's sums do not depend on other rows."""

from dataclasses import dataclass
from math import ceil
from typing import Final, NamedTuple

import torch

from forerun.backends.gpu.language import ROW_TILE
from forerun.backends.gpu.passes.dequantise import SPAN_INPUTS
from forerun.core.model_spec import WeightFormat

MULTIPROCESSORS: Final = 132  # Of an H100.
ENOUGH_PROGRAMS: Final = 250  # About two for each of them keep its memory busy.
LEAST_BLOCKS: Final = 4  # A program with fewer blocks of inputs waits more than it loads; half as many of 256.
NARROW_OUT: Final = 64
WIDE_OUT: Final = 128
WIDE_IN: Final = 256
LEAST_OUT: Final = 16  # Outputs of one matrix instruction of a warp.
MOST_ROW_TILES: Final = 8  # A weight that is loaded is multiplied by at most 128 rows.
FEW_ROW_TILES: Final = 2
MOST_SUMS: Final = 64  # Registers of a thread for the sums of all its rows.
STAGE_BYTES: Final = 96 << 10  # Shared memory for what is under way: the smallest GPUs have 99 KiB.
WARP: Final = 32  # Threads.


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


class RowBlock(NamedTuple):
    """What changes with the number of a pass's rows.

    Args:
        num_row_tiles: tiles of ROW_TILE rows in a program, a power of two: all are multiplied by a weight once loaded.
        step_in: inputs at a time; of int4 weights a part of block_in.
        num_stages: as many steps as are under way at a time, the one at work included.
    """

    num_row_tiles: int
    step_in: int
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
    num_warps = min(4, max(2 if compute == torch.float32 else 1, block_out // LEAST_OUT))
    if block_out >= WIDE_OUT and (weight_format != "int4" or compute == torch.float32):
        num_warps = 8  # Fewer warps lack the registers for two tiles of rows.
    return Tiles(
        block_out=block_out, block_in=block_in, num_splits=num_splits, num_warps=num_warps,
        num_stages=3 if compute == torch.float32 or block_in == WIDE_IN else 4,
    )  # fmt: skip


def choose_rows(
    tiles: Tiles, num_rows: int, *, weight_format: WeightFormat, compute: torch.dtype, group_size: int
) -> RowBlock:
    """The rows of a program in a pass of `num_rows`, as far as registers and shared memory have room."""
    wanted, num_warps = 1 << (-(-num_rows // ROW_TILE) - 1).bit_length(), tiles.num_warps
    if wanted > FEW_ROW_TILES and tiles.block_out >= WIDE_OUT:
        num_warps = 8
    most = max(1, MOST_SUMS * WARP * num_warps // (ROW_TILE * tiles.block_out))
    if tiles.block_out < NARROW_OUT:
        most = min(most, 2 * num_warps)  # Few warps share what comes after the product.
    if tiles.block_out > WIDE_OUT:
        most = min(most, FEW_ROW_TILES)  # What comes after it takes the registers of half the sums.
    if group_size > 0:
        most = min(most, group_size // 8)  # The scales of many groups take registers too,
    if compute == torch.float32:
        most = min(most, FEW_ROW_TILES)  # and so do rows and weights without matrix instructions.
    num_row_tiles = min(wanted, most, MOST_ROW_TILES)
    step_in, num_stages = tiles.block_in, tiles.num_stages
    if weight_format == "int4" and num_row_tiles > 1 and step_in > SPAN_INPUTS:
        step_in, num_stages = SPAN_INPUTS, num_stages + 1
    bits = {"plain": 8 * compute.itemsize, "int8": 8, "int4": 4}[weight_format]
    step_bytes = step_in * (tiles.block_out * bits // 8 + num_row_tiles * ROW_TILE * compute.itemsize)
    if weight_format == "int4":
        num_groups = step_in // group_size
        step_bytes += 4 * tiles.block_out * (num_groups + -(-num_groups // 8))  # Scales, and words of zeros.
    return RowBlock(num_row_tiles, step_in, num_warps, min(num_stages, 1 + STAGE_BYTES // step_bytes))


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
