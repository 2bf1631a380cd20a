"""Split-K: the inputs of an output shared between programs, whose parts the last of them joins in order.

Legend: R rows of a tile (ROW_TILE), O outputs of a tile (block_out).
"""

import triton
import triton.language as tl

from forerun.backends.gpu.language import ROWS
from forerun.backends.gpu.passes.dequantise import SPAN_WORDS
from forerun.backends.gpu.passes.matmul import matmul

EARLY_BLOCKS = tl.constexpr(2)  # Of 396 programs 12 MB, which an H100's memory brings in 3.5 microseconds.
LINE_BYTES = tl.constexpr(128)
PREFETCH = tl.constexpr("prefetch.global.L2 [$1]; mov.b32 $0, 0;")


@triton.jit
def clamped(places_O, SHAPE: tl.constexpr):
    """The outputs at these places, of a last tile that is not full the last one; in whole tiles addresses stay sums
    of a few parts, which saves instructions."""
    return places_O if SHAPE.num_out % SHAPE.block_out == 0 else tl.minimum(places_O, SHAPE.num_out - 1)


@triton.jit
def request_weights(weight, outs_O, SHAPE: tl.constexpr, OVERLAPS: tl.constexpr):
    """Ask for a program's first blocks of weights while the kernel before still runs.

    They come into the second-level cache, so that memory does not rest while kernels change.
    """
    if OVERLAPS:
        NUM_BLOCKS: tl.constexpr = (SHAPE.num_in + SHAPE.block_in - 1) // SHAPE.block_in
        first_block = 0
        if SHAPE.num_splits > 1 and not SHAPE.is_wide:
            first_block = tl.program_id(2) * NUM_BLOCKS // SHAPE.num_splits
        if SHAPE.weight_format == "int4":
            SPANS: tl.constexpr = SHAPE.block_in // 8 // SPAN_WORDS
            spans_B = tl.minimum(first_block * SPANS + tl.arange(0, EARLY_BLOCKS * SPANS), NUM_BLOCKS * SPANS - 1)
            places_OB = (spans_B[None, :] * SHAPE.num_out + outs_O[:, None]) * SPAN_WORDS
        else:
            ITEM_BYTES: tl.constexpr = weight.matrix.dtype.element_ty.primitive_bitwidth // 8
            LINE: tl.constexpr = LINE_BYTES // ITEM_BYTES
            NUM_LINES: tl.constexpr = max(1, EARLY_BLOCKS * SHAPE.block_in // LINE)
            inputs_B = first_block * SHAPE.block_in + tl.arange(0, NUM_LINES) * LINE
            places_OB = outs_O.to(tl.int64)[:, None] * SHAPE.num_in + tl.minimum(inputs_B, SHAPE.num_in - 1)[None, :]
        addresses_OB = (weight.matrix + places_OB).to(tl.int64)
        tl.inline_asm_elementwise(PREFETCH, "=r,l", [addresses_OB], tl.int32, is_pure=False, pack=1)


@triton.jit
def split_k_matmul(h, weight, workspace, outs_O, first_row, end_row, SHAPE: tl.constexpr):
    """The two tiles of `matmul` over all inputs, and whether they are; if not, another program will have them.

    Programs are (block of rows, tile of outputs, split of inputs); `workspace` is a `SplitWorkspace`. A wide pass has
    programs enough, so that one does all splits, and in the order in which they are joined otherwise.
    """
    NUM_BLOCKS: tl.constexpr = (SHAPE.num_in + SHAPE.block_in - 1) // SHAPE.block_in
    NUM_SPLITS: tl.constexpr = SHAPE.num_splits
    BLOCK_OUT: tl.constexpr = SHAPE.block_out
    is_whole = True
    if NUM_SPLITS == 1:
        sums_0, sums_1 = matmul(h, weight, outs_O, first_row, end_row, 0, NUM_BLOCKS, SHAPE)
    elif SHAPE.is_wide:
        sums_0 = tl.zeros((ROWS, BLOCK_OUT), tl.float32)
        sums_1 = sums_0
        for part in range(NUM_SPLITS):
            start, end = part * NUM_BLOCKS // NUM_SPLITS, (part + 1) * NUM_BLOCKS // NUM_SPLITS
            part_0, part_1 = matmul(h, weight, outs_O, first_row, end_row, start, end, SHAPE)
            sums_0 += part_0
            sums_1 += part_1
    else:
        split = tl.program_id(2)
        start, end = split * NUM_BLOCKS // NUM_SPLITS, (split + 1) * NUM_BLOCKS // NUM_SPLITS
        sums_0, sums_1 = matmul(h, weight, outs_O, first_row, end_row, start, end, SHAPE)
        is_whole = store_part(sums_0, sums_1, workspace, SHAPE)
        if is_whole:
            sums_0 = join_parts(workspace, 0, SHAPE)
            if SHAPE.num_row_tiles == 2:
                tl.debug_barrier()  # Registers do not suffice to load both tiles' parts at a time.
                sums_1 = join_parts(workspace, 1, SHAPE)
    return sums_0, sums_1, is_whole


@triton.jit
def store_part(sums_0, sums_1, workspace, SHAPE: tl.constexpr):
    """Store a program's part; whether all others of its tile are stored already."""
    tile, split = tl.program_id(1), tl.program_id(2)
    tl.store(part_places(workspace, split, 0, SHAPE), sums_0)
    if SHAPE.num_row_tiles == 2:
        tl.store(part_places(workspace, split, 1, SHAPE), sums_1)
    tl.debug_barrier()  # One thread counts, after all have stored.
    is_last = tl.atomic_add(workspace.counters + tile, 1, sem="acq_rel") == SHAPE.num_splits - 1
    if is_last:
        tl.store(workspace.counters + tile, 0)
    return is_last


@triton.jit
def join_parts(workspace, row_tile, SHAPE: tl.constexpr):
    """The sum of all parts, in order. They come from beyond the processor's own cache, which may hold older ones."""
    NUM_SPLITS: tl.constexpr = SHAPE.num_splits
    BLOCK_OUT: tl.constexpr = SHAPE.block_out
    sums_RO = tl.zeros((ROWS, BLOCK_OUT), tl.float32)
    for split in tl.static_range(NUM_SPLITS):
        sums_RO += tl.load(part_places(workspace, split, row_tile, SHAPE), cache_modifier=".cg")
    return sums_RO


@triton.jit
def part_places(workspace, split, row_tile, SHAPE: tl.constexpr):
    """Where a program's part of a tile of rows lies: [R, O], all in a row."""
    first_row = ((tl.program_id(1) * SHAPE.num_splits + split) * SHAPE.num_row_tiles + row_tile) * ROWS
    rows_R = first_row + tl.arange(0, ROWS)
    return workspace.partials + rows_R[:, None] * SHAPE.block_out + tl.arange(0, SHAPE.block_out)[None, :]
