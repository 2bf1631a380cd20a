"""The sum over ranks behind each product that they have a part of: one-shot all-reduce, residual and next norm's part.

Every rank reads the partials of all and adds them in the order of ranks in float32, so that a row has the same bits on
every rank, in any company and each time (`sharding.sums`). So every rank reads N - 1 times what it gives, which for the
few rows of a round takes less than a second wait would: two-shot all-reduce moves less from some 32 rows on. The
switch's own sums (multimem) have an order that nobody knows.

Legend: T rows, H hidden size, N ranks; in kernels R rows of a tile (ROW_TILE), O features of a program.
"""

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.language import ROWS, await_inputs, launch_options
from forerun.backends.gpu.passes.epilogue import keep_left_out, write_residual
from forerun.backends.gpu.passes.exchange import Exchange, meet, place_of
from forerun.backends.gpu.passes.linear_buffers import NextNorm

BLOCK_OUT: Final = 64  # features of a program: 128 programs for 8192 of them, a row of a cache line in bfloat16


def num_tiles_of(size: int) -> int:
    """Programs for rows of `size` features, and partial sums of squares of a row. No pass has more or fewer."""
    return -(-size // BLOCK_OUT)


def add_partials(
    exchange: Exchange, x: Tensor, *, num_rows: int, next_norm: NextNorm, row_skips: Tensor | None, sublayer: int,
    num_sublayers: int, overlaps: bool,
) -> None:  # fmt: skip
    """x += the partials of all ranks, which lie at their places, and what the next norm needs of the new x.

    Args:
        x: float32 [any, H], the same on every rank.
        row_skips: as for `linear_add`.
    """
    size = x.shape[1]
    add_partials_kernel[(num_tiles_of(size),)](
        exchange.peers, exchange.rank, exchange.most_polls, x, num_rows, row_skips, sublayer, num_sublayers,
        next_norm.tensors,
        SHAPE=exchange.shape, SIZE=size, BLOCK_OUT=BLOCK_OUT, NEXT_SCALE=next_norm.scale, OVERLAPS=overlaps,
        **launch_options(num_warps=4, overlaps=overlaps),
    )  # fmt: skip


@triton.jit(do_not_specialize=["rank", "most_polls", "end_row", "sublayer", "num_sublayers"])
def add_partials_kernel(
    peers, rank, most_polls, x, end_row, row_skips, sublayer, num_sublayers, next_norm,
    SHAPE: tl.constexpr, SIZE: tl.constexpr, BLOCK_OUT: tl.constexpr, NEXT_SCALE: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """x[t, o] = ((x[t, o] + partial_0[t, o]) + partial_1[t, o]) + ... unless row_skips[t, sublayer]; next_h and
    next_squares of it as `linear_add_kernel` has them.

    partial_n [T, H] in the dtype of next_h at rank n's place. A program has BLOCK_OUT features of all rows.
    """
    NUM_RANKS: tl.constexpr = SHAPE.num_ranks
    places_O = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    await_inputs(OVERLAPS)
    exchange = meet(peers, rank, most_polls, SHAPE)
    for first in range(0, end_row, ROWS):
        rows_R = first + tl.arange(0, ROWS)
        is_there_RO = (rows_R < end_row)[:, None] & (places_O < SIZE)[None, :]
        places_RO = rows_R[:, None] * SIZE + places_O[None, :]
        before_RO = tl.load(x + places_RO, mask=is_there_RO, other=0.0)
        after_RO = before_RO
        for other in tl.static_range(NUM_RANKS):
            partials = place_of(peers, other, exchange, next_norm[1], SHAPE)
            # From beyond the processor's own cache, which may hold what lay there before.
            found_RO = tl.load(partials + places_RO, mask=is_there_RO, other=0.0, cache_modifier=".cg")
            after_RO += found_RO.to(tl.float32)
        after_RO = keep_left_out(after_RO, before_RO, row_skips, rows_R, end_row, sublayer, num_sublayers)
        write_residual(after_RO, x, next_norm, tl.program_id(0), rows_R, places_O, end_row, SIZE, NEXT_SCALE)
