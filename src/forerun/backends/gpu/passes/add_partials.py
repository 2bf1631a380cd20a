"""One-shot all-reduce after each product that is divided between ranks, with the residual and the next norm's inputs.

Every rank reads the partial sums of all ranks and adds them in rank order in float32, so that a row's result is the
same bit for bit on every rank, beside any other rows, and in every run (`sum_in_order`). For this every rank reads
N - 1 times as much as it writes. With the few rows of a round this is faster than a second wait; from about 32 rows on
two-shot all-reduce is better. Sums in the NVLink switch (multimem) are not used, as their order is not documented.

Legend: T rows, H hidden size, N ranks; in kernels R rows of a tile (ROW_TILE), O features of a program.
"""

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.kernel_parts import ROWS, await_inputs, launch_options
from forerun.backends.gpu.passes.epilogue import keep_left_out, write_residual
from forerun.backends.gpu.passes.exchange import RankExchange, meet, place_in
from forerun.backends.gpu.passes.linear_buffers import NextNorm

MOST_COPIES = tl.constexpr(16)  # Loads in flight, 4 KiB each in float32: enough for all ranks of one machine.
BLOCK_OUT: Final = 64  # Features of a program: 8192 features make 128 programs; a row is one cache line in bfloat16.


def num_tiles_of(size: int) -> int:
    """Number of programs for rows of `size` features, which is also the number of partial sums of squares of a row. It
    is the same in every pass.
    """
    return -(-size // BLOCK_OUT)


def add_partials(
    exchange: RankExchange, x: Tensor, *, num_rows: int, next_norm: NextNorm, row_skips: Tensor | None, sublayer: int,
    num_sublayers: int, overlaps: bool,
) -> None:  # fmt: skip
    """Add to x the partial sums that all ranks hold at their places, and write the next norm's inputs.

    Args:
        x: float32 [any, H], the same on every rank.
        row_skips: as for `linear_add`.
    """
    size = x.shape[1]
    add_partials_kernel[(num_tiles_of(size),)](
        exchange.peers, exchange.rank, exchange.most_polls, x, num_rows, row_skips, sublayer, num_sublayers,
        next_norm.tensors,
        SHAPE=exchange.shape, SIZE=size, BLOCK_OUT=BLOCK_OUT, IS_SUM=False, OVERLAPS=overlaps,
        **launch_options(num_warps=4, overlaps=overlaps),
    )  # fmt: skip


def sum_partials(exchange: RankExchange, sums: Tensor, *, like: Tensor, num_rows: int, overlaps: bool) -> None:
    """Write to `sums`, float32 [any, H], the partial sums of all ranks added up. `like` has the partials' dtype."""
    size = sums.shape[1]
    add_partials_kernel[(num_tiles_of(size),)](
        exchange.peers, exchange.rank, exchange.most_polls, sums, num_rows, None, 0, 0, (None, like, None, 0, 1.0),
        SHAPE=exchange.shape, SIZE=size, BLOCK_OUT=BLOCK_OUT, IS_SUM=True, OVERLAPS=overlaps,
        **launch_options(num_warps=4, overlaps=overlaps),
    )  # fmt: skip


@triton.jit(do_not_specialize=["rank", "most_polls", "end_row", "sublayer", "num_sublayers"])
def add_partials_kernel(
    peers, rank, most_polls, x, end_row, row_skips, sublayer, num_sublayers, next_norm,
    SHAPE: tl.constexpr, SIZE: tl.constexpr, BLOCK_OUT: tl.constexpr, IS_SUM: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """x[t, o] = ((x[t, o] + partial_0[t, o]) + partial_1[t, o]) + ... unless row_skips[t, sublayer]; next_h and
    next_squares follow from the new x as in `linear_add_kernel`. With IS_SUM x begins with 0, and only x is written.

    partial_n is [T, H], in the dtype of next_h, at rank n's place. A program computes BLOCK_OUT features of all rows.
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
        if IS_SUM:
            before_RO = tl.zeros((ROWS, BLOCK_OUT), tl.float32)
        else:
            before_RO = tl.load(x + places_RO, mask=is_there_RO, other=0.0)
        after_RO = before_RO
        # Loads from all ranks are in flight before the first is added, as each takes the latency of another GPU. An
        # unrolled loop would not do: ptxas would save registers by issuing the last loads after the first arrived.
        for other in tl.range(0, NUM_RANKS, num_stages=NUM_STAGES):
            address = tl.sum(tl.where(ranks_N == other, addresses_N, 0), 0)
            partial = place_in(address, exchange, next_norm[1], SHAPE)
            # Bypass the first-level cache (.cg), which may hold older contents of this memory.
            found_RO = tl.load(partial + places_RO, mask=is_there_RO, other=0.0, cache_modifier=".cg")
            after_RO += found_RO.to(tl.float32)
        if IS_SUM:
            tl.store(x + places_RO, after_RO, mask=is_there_RO)
        else:
            after_RO = keep_left_out(after_RO, before_RO, row_skips, rows_R, end_row, sublayer, num_sublayers)
            write_residual(after_RO, x, next_norm, tl.program_id(0), rows_R, places_O, end_row, SIZE)
