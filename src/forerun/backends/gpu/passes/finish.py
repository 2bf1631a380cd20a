"""What makes a program's sums whole: its own share of the inputs, the other programs' shares, the norm of the input.

Legend: R rows of a tile (ROW_TILE), O outputs of a tile (BLOCK_OUT), P partial sums of squares of a row.
"""

import triton
import triton.language as tl

from forerun.backends.gpu.language import ROW_TILE
from forerun.backends.gpu.passes.accumulate import accumulate

ROWS = tl.constexpr(ROW_TILE)
PARTS_PER_STEP = tl.constexpr(32)  # of a sum of squares: loads that are under way together
MOST_LEVELS = tl.constexpr(16)  # of a sum of pairs: 65536 numbers


@triton.jit
def finished_sums(
    h, values, scales, partials, counters, tile, split, outs_O, first_row, end_row,
    FORMAT: tl.constexpr, NUM_IN: tl.constexpr, NUM_OUT: tl.constexpr, GROUP_SIZE: tl.constexpr,
    BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr, NUM_SPLITS: tl.constexpr, IS_WIDE: tl.constexpr,
    NUM_TILES: tl.constexpr,
):  # fmt: skip
    """The two tiles of `accumulate` over all inputs, and whether they are; if not, another program will have them.

    A wide pass has programs enough, so that one does all splits, and in the order in which they are joined otherwise.
    """
    NUM_BLOCKS: tl.constexpr = (NUM_IN + BLOCK_IN - 1) // BLOCK_IN
    is_finished = True
    if NUM_SPLITS == 1:
        sums_0, sums_1 = accumulate(
            h, values, scales, outs_O, first_row, end_row, 0, NUM_BLOCKS,
            FORMAT, NUM_IN, NUM_OUT, GROUP_SIZE, BLOCK_OUT, BLOCK_IN, NUM_TILES,
        )  # fmt: skip
    elif IS_WIDE:
        sums_0 = tl.zeros((ROWS, BLOCK_OUT), tl.float32)
        sums_1 = sums_0
        for part in range(NUM_SPLITS):
            part_0, part_1 = accumulate(
                h, values, scales, outs_O, first_row, end_row,
                part * NUM_BLOCKS // NUM_SPLITS, (part + 1) * NUM_BLOCKS // NUM_SPLITS,
                FORMAT, NUM_IN, NUM_OUT, GROUP_SIZE, BLOCK_OUT, BLOCK_IN, NUM_TILES,
            )  # fmt: skip
            sums_0 += part_0
            sums_1 += part_1
    else:
        sums_0, sums_1 = accumulate(
            h, values, scales, outs_O, first_row, end_row,
            split * NUM_BLOCKS // NUM_SPLITS, (split + 1) * NUM_BLOCKS // NUM_SPLITS,
            FORMAT, NUM_IN, NUM_OUT, GROUP_SIZE, BLOCK_OUT, BLOCK_IN, NUM_TILES,
        )  # fmt: skip
        is_finished = hand_in(sums_0, sums_1, partials, counters, tile, split, BLOCK_OUT, NUM_SPLITS, NUM_TILES)
        if is_finished:
            sums_0 = join_parts(partials, tile, 0, BLOCK_OUT, NUM_SPLITS, NUM_TILES)
            if NUM_TILES == 2:
                tl.debug_barrier()  # there are no registers to load both tiles' parts at a time
                sums_1 = join_parts(partials, tile, 1, BLOCK_OUT, NUM_SPLITS, NUM_TILES)
    return sums_0, sums_1, is_finished


@triton.jit
def hand_in(
    sums_0, sums_1, partials, counters, tile, split,
    BLOCK_OUT: tl.constexpr, NUM_SPLITS: tl.constexpr, NUM_TILES: tl.constexpr,
):  # fmt: skip
    """Store a program's part; whether all others of its tile are stored already."""
    tl.store(part_places(partials, tile, split, 0, BLOCK_OUT, NUM_SPLITS, NUM_TILES), sums_0)
    if NUM_TILES == 2:
        tl.store(part_places(partials, tile, split, 1, BLOCK_OUT, NUM_SPLITS, NUM_TILES), sums_1)
    tl.debug_barrier()  # one thread counts, after the stores of all
    is_last = tl.atomic_add(counters + tile, 1, sem="acq_rel") == NUM_SPLITS - 1
    if is_last:
        tl.store(counters + tile, 0)
    return is_last


@triton.jit
def join_parts(partials, tile, row_tile, BLOCK_OUT: tl.constexpr, NUM_SPLITS: tl.constexpr, NUM_TILES: tl.constexpr):
    """The sum of all parts, in order. They come from beyond the processor's own cache, which may hold older ones."""
    sums_RO = tl.zeros((ROWS, BLOCK_OUT), tl.float32)
    for split in tl.static_range(NUM_SPLITS):
        places_RO = part_places(partials, tile, split, row_tile, BLOCK_OUT, NUM_SPLITS, NUM_TILES)
        sums_RO += tl.load(places_RO, cache_modifier=".cg")
    return sums_RO


@triton.jit
def part_places(
    partials, tile, split, row_tile, BLOCK_OUT: tl.constexpr, NUM_SPLITS: tl.constexpr, NUM_TILES: tl.constexpr
):
    """Where a program's part of a tile of rows lies: [R, O], all in a row."""
    first_row = ((tile * NUM_SPLITS + split) * NUM_TILES + row_tile) * ROWS
    rows_R = first_row + tl.arange(0, ROWS)
    return partials + rows_R[:, None] * BLOCK_OUT + tl.arange(0, BLOCK_OUT)[None, :]


@triton.jit
def sum_of_pairs(numbers_RN, SIZE: tl.constexpr):
    """[R]: neighbours are added, then neighbouring sums, and so on. SIZE is a power of two.

    The order is part of the kernels' exactness: `tl.sum` takes one that changes with how a tensor is spread over
    threads, and so with whatever else a kernel does.
    """
    sums = numbers_RN
    for level in tl.static_range(MOST_LEVELS):
        if SIZE >> level > 1:
            sums = tl.sum(tl.reshape(sums, (ROWS, SIZE >> (level + 1), 2)), 2)
    return tl.reshape(sums, (ROWS,))


@triton.jit
def row_scales(
    squares, first_row, end_row, row_stride,
    NUM_PARTS: tl.constexpr, SIZE: tl.constexpr, EPS: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """[R]: what the sums of a row are still to be multiplied by, its input having been left without its RMS norm.

    Args:
        squares: [NUM_PARTS, row_stride] float32 partial sums of the squares of SIZE numbers.
        SCALE: by which the input was multiplied.
    """
    STEP: tl.constexpr = min(NUM_PARTS, PARTS_PER_STEP)
    rows_R = first_row + tl.arange(0, ROWS)
    sums_R = tl.zeros((ROWS,), tl.float32)
    for part in range(0, NUM_PARTS, STEP):
        for place in tl.static_range(STEP):
            is_there_R = (rows_R < end_row) & (part + place < NUM_PARTS)
            sums_R += tl.load(squares + (part + place) * row_stride + rows_R, mask=is_there_R, other=0.0)
    return 1.0 / tl.sqrt(sums_R / SIZE + EPS) / SCALE
