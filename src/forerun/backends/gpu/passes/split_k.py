"""Split-K: several programs divide the inputs of an output; the last to finish adds the partial sums in order.

Legend: R rows of a tile (ROW_TILE), O outputs of a tile (block_out).
"""

import triton
import triton.language as tl

from forerun.backends.gpu.kernel_parts import ROWS
from forerun.backends.gpu.passes.dequantise import SPAN_WORDS
from forerun.backends.gpu.passes.matmul import matmul

EARLY_BLOCKS = tl.constexpr(4)  # For 396 programs this is 26 MB, half of an H100's second-level cache.
LINE_BYTES = tl.constexpr(128)
PREFETCH = tl.constexpr("prefetch.global.L2 [$1]; mov.b32 $0, 0;")


@triton.jit
def clamped(places_O, SHAPE: tl.constexpr):
    """The outputs at these places; places beyond the last output become the last output. If all tiles are full, places
    are not clamped, so that addresses stay simple sums, which saves instructions.
    """
    return places_O if SHAPE.num_out % SHAPE.block_out == 0 else tl.minimum(places_O, SHAPE.num_out - 1)


@triton.jit
def request_weights(weight, outs_O, SHAPE: tl.constexpr, OVERLAPS: tl.constexpr):
    """Prefetch a program's first weights while the previous kernel still runs.

    They are loaded into the second-level cache, so that memory is not idle between kernels.
    """
    if OVERLAPS:
        NUM_BLOCKS: tl.constexpr = (SHAPE.num_in + SHAPE.block_in - 1) // SHAPE.block_in
        OWN_BLOCKS: tl.constexpr = triton.next_power_of_2(NUM_BLOCKS // SHAPE.num_splits)
        INPUTS: tl.constexpr = min(EARLY_BLOCKS, OWN_BLOCKS) * SHAPE.block_in
        first_input = tl.program_id(2) * NUM_BLOCKS // SHAPE.num_splits * SHAPE.block_in
        if SHAPE.weight_format == "int4":
            SPAN: tl.constexpr = 128  # Inputs.
            spans_B = tl.minimum(first_input // SPAN + tl.arange(0, INPUTS // SPAN), (SHAPE.num_in - 1) // SPAN)
            places_OB = (spans_B[None, :] * SHAPE.num_out + outs_O[:, None]) * SPAN_WORDS
        else:
            LINE: tl.constexpr = LINE_BYTES * 8 // weight.matrix.dtype.element_ty.primitive_bitwidth
            inputs_B = tl.minimum(first_input + tl.arange(0, max(1, INPUTS // LINE)) * LINE, SHAPE.num_in - 1)
            places_OB = outs_O.to(tl.int64)[:, None] * SHAPE.num_in + inputs_B[None, :]
        addresses_OB = (weight.matrix + places_OB).to(tl.int64)
        tl.inline_asm_elementwise(PREFETCH, "=r,l", [addresses_OB], tl.int32, is_pure=False, pack=1)


@triton.jit
def split_k_matmul(h, weight, workspace, outs_O, first_row, end_row, SHAPE: tl.constexpr):
    """The tiles of `matmul` over this program's inputs, and whether it is the last one, which goes on to `whole_sums`.

    Programs are (block of rows, tile of outputs, split of inputs); `workspace` is a `SplitWorkspace`.
    """
    NUM_BLOCKS: tl.constexpr = (SHAPE.num_in + SHAPE.block_in - 1) // SHAPE.block_in
    NUM_SPLITS: tl.constexpr = SHAPE.num_splits
    if NUM_SPLITS == 1:
        start = 0
        end = NUM_BLOCKS
    else:
        split = tl.program_id(2)
        start = split * NUM_BLOCKS // NUM_SPLITS
        end = (split + 1) * NUM_BLOCKS // NUM_SPLITS
    sums = matmul(h, weight, outs_O, first_row, end_row, start, end, SHAPE)
    is_last = True
    if NUM_SPLITS > 1:
        is_last = store_part(sums, workspace, SHAPE)
    return sums, is_last


@triton.jit
def store_part(sums, workspace, SHAPE: tl.constexpr):
    """Store this program's partial sums; return whether all other programs of the tile have stored theirs."""
    NUM_TILES: tl.constexpr = SHAPE.num_row_tiles
    for tile in tl.static_range(NUM_TILES):
        tl.store(part_places(workspace, tl.program_id(2), tile, SHAPE), sums[tile])
    tl.debug_barrier()  # All threads have stored before one of them counts.
    counter = workspace.counters + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    is_last = tl.atomic_add(counter, 1, sem="acq_rel") == SHAPE.num_splits - 1
    if is_last:
        tl.store(counter, 0)
    return is_last


@triton.jit
def whole_sums(sums, workspace, tile, SHAPE: tl.constexpr):
    """[R, O] a tile's sums over all inputs: the partial sums of all programs, added in order.

    The loads bypass the first-level cache (.cg), which may hold older partial sums.
    """
    BLOCK_OUT: tl.constexpr = SHAPE.block_out
    NUM_SPLITS: tl.constexpr = SHAPE.num_splits
    if NUM_SPLITS == 1:
        return sums[tile]
    else:
        if tile > 0:
            tl.debug_barrier()  # There are too few registers to load the parts of several tiles at a time.
        sums_RO = tl.zeros((ROWS, BLOCK_OUT), tl.float32)
        for split in tl.static_range(NUM_SPLITS):
            sums_RO += tl.load(part_places(workspace, split, tile, SHAPE), cache_modifier=".cg")
        return sums_RO


@triton.jit
def part_places(workspace, split, row_tile, SHAPE: tl.constexpr):
    """Addresses [R, O] of a split's partial sums of a tile of rows; they are contiguous."""
    outs = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    first_row = ((outs * SHAPE.num_splits + split) * SHAPE.num_row_tiles + row_tile).to(tl.int64) * ROWS
    rows_R = first_row + tl.arange(0, ROWS)
    return workspace.partials + rows_R[:, None] * SHAPE.block_out + tl.arange(0, SHAPE.block_out)[None, :]
