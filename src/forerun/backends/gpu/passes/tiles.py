"""Divides a weight between programs by its shape and format only, so that a row's sums do not depend on other rows."""

from dataclasses import dataclass
from math import ceil
from typing import Final, NamedTuple

import torch

from forerun.backends.gpu.kernel_parts import ROW_TILE
from forerun.backends.gpu.passes.dequantise import SPAN_INPUTS
from forerun.core.model_spec import WeightFormat

MULTIPROCESSORS: Final = 132  # Of an H100.
ENOUGH_PROGRAMS: Final = 250  # About two on each multiprocessor keep memory busy.
LEAST_BLOCKS: Final = 4  # A program with fewer blocks waits more than it loads; half as many if blocks have 256 inputs.
NARROW_OUT: Final = 64
WIDE_OUT: Final = 128
WIDE_IN: Final = 256
LEAST_OUT: Final = 16  # Outputs of one matrix instruction of a warp.
MOST_ROW_TILES: Final = 8  # A program multiplies a weight by at most 128 rows.
FEW_ROW_TILES: Final = 2
MOST_SUMS: Final = 64  # Registers of a thread for the sums of all its rows.
STAGE_BYTES: Final = 96 << 10  # Shared memory for all stages: the smallest GPUs have 99 KiB.
WARP: Final = 32  # Threads of a warp.


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """The part of a weight that a program multiplies by.

    Args:
        block_out: outputs of a program.
        block_in: inputs that it processes at a time.
        num_splits: programs that divide the inputs of an output between them.
        num_stages: blocks of inputs in flight at a time, including the one that is computed.
    """

    block_out: int
    block_in: int
    num_splits: int
    num_warps: int
    num_stages: int


class RowBlock(NamedTuple):
    """The settings that depend on the number of rows in a pass.

    Args:
        num_row_tiles: tiles of ROW_TILE rows in a program, a power of two; a loaded weight is multiplied by all.
        step_in: inputs of a step; for int4 weights it may be half of block_in, otherwise it is block_in.
        num_stages: steps in flight at a time, including the one that is computed.
    """

    num_row_tiles: int
    step_in: int
    num_warps: int
    num_stages: int


def choose_tiles(
    num_out: int, num_in: int, *, weight_format: WeightFormat, compute: torch.dtype, head_dim: int | None = None
) -> Tiles:
    """Tiles with blocks of 8 or 16 KiB, in enough programs to occupy a large GPU.

    Narrower blocks of outputs would load the rows too often from the cache; wider ones would need more splits.
    """
    block_out = 128 if weight_format == "int4" and compute != torch.float32 else 64
    block_in = 128
    if compute == torch.float32 and weight_format != "int4":
        block_in = 32  # Without matrix instructions registers hold a whole block.
    if weight_format == "int4" and compute != torch.float32 and num_in % (2 * block_in) == 0:
        block_in *= 2  # The fixed instructions of a step are spread over more weights.
    if head_dim is not None:
        if weight_format == "plain" and head_dim > block_out:
            block_in = max(16, block_in * block_out // head_dim)
        block_out = head_dim
    while block_out > LEAST_OUT and block_out // 2 >= num_out:
        block_out //= 2
    num_tiles = -(-num_out // block_out)
    num_blocks = -(-num_in // block_in)
    least_blocks = LEAST_BLOCKS if block_in < WIDE_IN else LEAST_BLOCKS // 2
    num_splits = most_even_splits(num_tiles, num_blocks, least_blocks)
    num_warps = min(4, max(2 if compute == torch.float32 else 1, block_out // LEAST_OUT))
    if block_out >= WIDE_OUT and (weight_format != "int4" or compute == torch.float32):
        num_warps = 8  # Fewer warps lack the registers for two tiles of rows.
    if block_out > 2 * WIDE_OUT:
        num_warps = 16
    return Tiles(
        block_out=block_out, block_in=block_in, num_splits=num_splits, num_warps=num_warps,
        num_stages=3 if compute == torch.float32 or block_in == WIDE_IN else 4,
    )  # fmt: skip


def choose_rows(
    tiles: Tiles, num_rows: int, *, weight_format: WeightFormat, compute: torch.dtype, group_size: int
) -> RowBlock:
    """The rows of a program in a pass of `num_rows`: as many as registers and shared memory allow."""
    wanted = 1 << (-(-num_rows // ROW_TILE) - 1).bit_length()
    num_warps = tiles.num_warps
    if wanted > FEW_ROW_TILES and tiles.block_out >= WIDE_OUT:
        num_warps = max(8, num_warps)
    most = max(1, MOST_SUMS * WARP * num_warps // (ROW_TILE * tiles.block_out))
    if tiles.block_out < NARROW_OUT:
        most = min(most, 2 * num_warps)  # With few warps a thread has much to do after the product.
    if tiles.block_out > WIDE_OUT:
        most = min(most, FEW_ROW_TILES)  # The steps after the product need registers for half of the sums.
    if tiles.block_out > 2 * WIDE_OUT:
        most = 1
    if group_size > 0:
        most = min(most, group_size // 8)  # The scales of many groups take registers.
    if compute == torch.float32:
        most = min(most, FEW_ROW_TILES)  # Without matrix instructions rows and weights take registers.
    num_row_tiles = min(wanted, most, MOST_ROW_TILES)
    step_in = tiles.block_in
    num_stages = tiles.num_stages
    if weight_format == "int4" and num_row_tiles > 1 and step_in > SPAN_INPUTS:
        step_in = SPAN_INPUTS
        num_stages = num_stages + 1
    bits = {"plain": 8 * compute.itemsize, "int8": 8, "int4": 4}[weight_format]
    step_bytes = step_in * (tiles.block_out * bits // 8 + num_row_tiles * ROW_TILE * compute.itemsize)
    if weight_format == "int4":
        num_groups = step_in // group_size
        step_bytes += 4 * tiles.block_out * (num_groups + -(-num_groups // 8))  # Scales and words of zeros.
    return RowBlock(num_row_tiles, step_in, num_warps, min(num_stages, 1 + STAGE_BYTES // step_bytes))


def most_even_splits(num_tiles: int, num_blocks: int, least_blocks: int) -> int:
    """The number of splits for which the busiest multiprocessor takes the least time.

    A program takes the time of its blocks, that of one more block to start, and, if there are several splits, that of
    another block to join them.
    """
    most = max(1, num_blocks // least_blocks)
    enough = [splits for splits in range(1, most + 1) if num_tiles * splits >= ENOUGH_PROGRAMS] or [most]
    return min(
        enough,
        key=lambda splits: ceil(num_tiles * splits / MULTIPROCESSORS) * (ceil(num_blocks / splits) + 1 + (splits > 1)),
    )
