"""The sum over ranks after each product that they share: one-shot all-reduce, residual, and inputs of the next norm.

Every rank reads the partial sums of all ranks and adds them in rank order in float32, so that a row has the same bits
on every rank, with any other rows and every time (`sharding.sums`). So every rank reads N - 1 times as much as it
writes. For the few rows of a round this takes less time than a second wait; two-shot all-reduce is better from about 32
rows on. The order of the switch's own sums (multimem) is not documented.

Legend: T rows, H hidden size, N ranks; in kernels R rows of a tile (ROW_TILE), O features of a program.
"""

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.language import ROWS, await_inputs, launch_options
from forerun.backends.gpu.passes.epilogue import keep_left_out, write_residual
from forerun.backends.gpu.passes.exchange import RankExchange, meet, place_in
from forerun.backends.gpu.passes.linear_buffers import NextNorm

MOST_COPIES = tl.constexpr(16)  # under way at a time, 4 KiB each in float32: all of them where ranks are on one machine
BLOCK_OUT: Final = 64  # features of a program: 128 programs for 8192 of them, a row of a cache line in bfloat16


def num_tiles_of(size: int) -> int:
    """Programs for rows of `size` features, and partial sums of squares of a row. No pass has more or fewer."""
    return -(-size // BLOCK_OUT)


def add_partials(
    exchange: RankExchange, x: Tensor, *, num_rows: int, next_norm: NextNorm, row_skips: Tensor | None, sublayer: int,
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
        SHAPE=exchange.shape, SIZE=size, BLOCK_OUT=BLOCK_OUT, OVERLAPS=overlaps,
        **launch_options(num_warps=4, overlaps=overlaps),
    )  # fmt: skip


@triton.jit(do_not_specialize=["rank", "most_polls", "end_row", "sublayer", "num_sublayers"])
def add_partials_kernel(
    peers, rank, most_polls, x, end_row, row_skips, sublayer, num_sublayers, next_norm,
    SHAPE: tl.constexpr, SIZE: tl.constexpr, BLOCK_OUT: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """x[t, o] = ((x[t, o] + partial_0[t, o]) + partial_1[t, o]) + ... unless row_skips[t, sublayer]; next_h and
    next_squares of it as `linear_add_kernel` has them.

    partial_n [T, H] in the dtype of next_h at rank n's place. A program has BLOCK_OUT features of all rows.
    """
    NUM_RANKS: tl.constexpr = SHAPE.num_ranks
    NUM_STAGES: tl.constexpr = min(NUM_RANKS, MOST_COPIES) + 1
    places_O = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    ranks_N = tl.arange(0, SHAPE.rank_block)
    addresses_N = tl.load(peers.addresses + ranks_N, mask=ranks_N < NUM_RANKS, other=0)
    await_inputs(OVERLAPS)
    exchange = meet(peers, rank, most_polls, SHAPE)
    for first in range(0, end_row, ROWS):
        rows_R = first + tl.arange(0, ROWS)
        is_there_RO = (rows_R < end_row)[:, None] & (places_O < SIZE)[None, :]
        places_RO = rows_R[:, None] * SIZE + places_O[None, :]
        before_RO = tl.load(x + places_RO, mask=is_there_RO, other=0.0)
        after_RO = before_RO
        # Copies from all ranks are under way before the first is added: each is as far away as another GPU. Were this
        # unrolled, ptxas would save registers and load the last ones after the first had come.
        for other in tl.range(0, NUM_RANKS, num_stages=NUM_STAGES):
            address = tl.sum(tl.where(ranks_N == other, addresses_N, 0), 0)
            partial = place_in(address, exchange, next_norm[1], SHAPE)
            # From beyond the processor's own cache, which may hold what lay there before.
            found_RO = tl.load(partial + places_RO, mask=is_there_RO, other=0.0, cache_modifier=".cg")
            after_RO += found_RO.to(tl.float32)
        after_RO = keep_left_out(after_RO, before_RO, row_skips, rows_R, end_row, sublayer, num_sublayers)
        write_residual(after_RO, x, next_norm, tl.program_id(0), rows_R, places_O, end_row, SIZE)
