"""Matrix product of a tile of outputs with several tiles of rows, in all three weight formats.

A program loads each weight once and multiplies it by all of its rows. Products have 16 or 32 rows: from 64 rows on the
matrix units of some GPUs would add in another order.

Legend: R rows of a tile (ROW_TILE) or of two, O outputs of a tile (block_out), I input features of a block (block_in),
K input features of a group, G groups, S words of a span; a word is eight int4 weights.
"""

import triton
import triton.language as tl

from forerun.backends.gpu.kernel_parts import ROWS, no_tiles, product
from forerun.backends.gpu.passes.dequantise import SPAN_WORDS, int4_values, int8_values


@triton.jit
def matmul(h, weight, outs_O, first_row, end_row, first_block, end_block, SHAPE: tl.constexpr):
    """y[r, o] = sum over i of h[r, i] W[o, i] over some blocks of inputs: a tuple of tiles [R, O] float32, scaled.

    Args:
        h: [any, num_in] in the compute dtype: float32, float16 or bfloat16.
        weight: a `LinearWeight`; its bias is not added.
        outs_O: int32 numbers of the outputs, below num_out, in any order (clamp those of a last tile).
        first_row, end_row: the tiles begin at row first_row of h; sums of rows from end_row on are meaningless.
        first_block, end_block: inputs from first_block * block_in to end_block * block_in, or to num_in.
        SHAPE: a `LinearShape`.
    """
    if SHAPE.weight_format == "int4":
        return matmul_int4(h, weight, outs_O, first_row, end_row, first_block, end_block, SHAPE)
    else:
        return matmul_bytes(h, weight, outs_O, first_row, end_row, first_block, end_block, SHAPE)


@triton.jit
def matmul_bytes(h, weight, outs_O, first_row, end_row, first_block, end_block, SHAPE: tl.constexpr):
    """`matmul` for plain weights, and for int8 weights with one scale for each output."""
    BLOCK_IN: tl.constexpr = SHAPE.block_in
    NUM_TILES: tl.constexpr = SHAPE.num_row_tiles
    inputs_I = tl.arange(0, BLOCK_IN)
    weights_IO = weight.matrix + outs_O.to(tl.int64)[None, :] * SHAPE.num_in + inputs_I[:, None]
    sums = zero_sums(SHAPE)
    for block in tl.range(first_block, end_block, num_stages=SHAPE.num_stages):
        first = block * BLOCK_IN
        if SHAPE.num_in % BLOCK_IN == 0:
            found_IO = tl.load(weights_IO + first)
        else:
            found_IO = tl.load(weights_IO + first, mask=(first + inputs_I < SHAPE.num_in)[:, None], other=0)
        if SHAPE.weight_format == "int8":
            found_IO = int8_values(found_IO, h.dtype.element_ty)
        added = no_tiles()
        for tile in tl.static_range(NUM_TILES):
            rows_RI = load_rows(h, first_row + tile * ROWS, end_row, first, BLOCK_IN, SHAPE)
            added = added + (product(rows_RI, found_IO, sums[tile]),)
        sums = added
    if SHAPE.weight_format == "int8":
        scales_1O = tl.load(weight.scales + outs_O)[None, :]
        scaled = no_tiles()
        for tile in tl.static_range(NUM_TILES):
            scaled = scaled + (sums[tile] * scales_1O,)
        sums = scaled
    return sums


@triton.jit
def zero_sums(SHAPE: tl.constexpr):
    """A tuple of tiles [R, O] of zeros."""
    BLOCK_OUT: tl.constexpr = SHAPE.block_out
    NUM_TILES: tl.constexpr = SHAPE.num_row_tiles
    sums = no_tiles()
    for _tile in tl.static_range(NUM_TILES):
        sums = sums + (tl.zeros((ROWS, BLOCK_OUT), tl.float32),)
    return sums


@triton.jit
def load_rows(h, first_row, end_row, first, SIZE: tl.constexpr, SHAPE: tl.constexpr):
    """SIZE inputs of a tile of rows, beginning at `first`; zeros beyond num_in.

    Rows from end_row on repeat the last row, as a mask of rows would cost instructions in every step. Rows are kept in
    the first-level cache (.ca), as several programs on a multiprocessor read the same ones.
    """
    rows_R = tl.minimum(first_row + tl.arange(0, ROWS), end_row - 1)
    inputs_I = first + tl.arange(0, SIZE)
    addresses_RI = h + rows_R[:, None] * SHAPE.num_in + inputs_I[None, :]
    if SHAPE.num_in % SHAPE.block_in == 0:
        return tl.load(addresses_RI, cache_modifier=".ca")
    else:
        return tl.load(addresses_RI, mask=(inputs_I < SHAPE.num_in)[None, :], other=0.0, cache_modifier=".ca")


@triton.jit
def matmul_int4(h, weight, outs_O, first_row, end_row, first_block, end_block, SHAPE: tl.constexpr):
    """`matmul` for int4: for each group, the product with codes minus zeros, which are exact, times the group's scale.

    Groups are added in order, step_in inputs at a time: more would take the registers of a second tile of rows.
    """
    BLOCK_OUT: tl.constexpr = SHAPE.block_out
    NUM_TILES: tl.constexpr = SHAPE.num_row_tiles
    SIZE: tl.constexpr = SHAPE.group_size
    STEP: tl.constexpr = SHAPE.step_in
    STEPS: tl.constexpr = SHAPE.block_in // STEP
    GROUPS: tl.constexpr = STEP // SIZE
    SPAN_GROUPS: tl.constexpr = 128 // SIZE  # Groups of a span.
    # Without matrix instructions the inputs of a product are held in registers, so a product is smaller.
    PIECE: tl.constexpr = min(SIZE, 32) if h.dtype.element_ty == tl.float32 else SIZE
    words_SO = weight.matrix + outs_O[None, :] * SPAN_WORDS + tl.arange(0, SPAN_WORDS)[:, None]
    scales_OG = weight.scales + outs_O[:, None] * SPAN_GROUPS + tl.arange(0, SPAN_GROUPS)[None, :]
    sums = zero_sums(SHAPE)
    for step in tl.range(first_block * STEPS, end_block * STEPS, num_stages=SHAPE.num_stages):
        for group in tl.static_range(GROUPS):
            if group % SPAN_GROUPS == 0:
                first_output = (step * (GROUPS // SPAN_GROUPS) + group // SPAN_GROUPS) * SHAPE.num_out
                found_SO = tl.load(words_SO + first_output * SPAN_WORDS)
                scale_OG = tl.load(scales_OG + first_output * SPAN_GROUPS)
            if group % 8 == 0:  # A word holds the zeros of eight groups.
                number = step * GROUPS + group
                zeros_1O = tl.load(weight.zeros + (number >> 3) * SHAPE.num_out + outs_O)[None, :]
                zeros_1O = zeros_1O >> (((number & 1) * 16 if GROUPS == 1 else 0) + (number & 6) * 2)
            pair_1O = zeros_1O >> (group % 8 // 2 * 4)
            parts = zero_sums(SHAPE)
            for piece in tl.static_range(SIZE // PIECE):
                values_KO = int4_values(
                    found_SO, pair_1O, group % 2, group % SPAN_GROUPS * SIZE + piece * PIECE, PIECE, h.dtype.element_ty
                )
                added = no_tiles()
                for tile in tl.static_range(NUM_TILES):
                    first = step * STEP + group * SIZE + piece * PIECE
                    rows_RK = load_rows(h, first_row + tile * ROWS, end_row, first, PIECE, SHAPE)
                    added = added + (product(rows_RK, values_KO, parts[tile]),)
                parts = added
            scale_1O = column(scale_OG, group % SPAN_GROUPS, SPAN_GROUPS)[None, :]
            added = no_tiles()
            for tile in tl.static_range(NUM_TILES):
                added = added + (tl.fma(parts[tile], tl.broadcast_to(scale_1O, (ROWS, BLOCK_OUT)), sums[tile]),)
            sums = added
    return sums


@triton.jit
def column(numbers_OG, PLACE: tl.constexpr, COUNT: tl.constexpr):
    """[O]: column PLACE of COUNT, a power of two. It is selected in registers, without a store to shared memory."""
    SIZE: tl.constexpr = numbers_OG.shape[0]
    HALF: tl.constexpr = COUNT // 2
    if COUNT == 1:
        return tl.reshape(numbers_OG, (SIZE,))
    else:
        low_OG, high_OG = tl.split(tl.permute(tl.reshape(numbers_OG, (SIZE, 2, HALF)), (0, 2, 1)))
        return column(low_OG if PLACE < HALF else high_OG, PLACE % HALF, HALF)
