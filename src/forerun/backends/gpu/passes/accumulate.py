"""The one loop over weights: sums of a tile of outputs for one or two tiles of rows, in all three weight formats.

Legend: R rows of a tile (ROW_TILE), O outputs of a tile (BLOCK_OUT), I input features of a block (BLOCK_IN), J words of
a block, a word being eight int4 weights.
"""

import triton
import triton.language as tl

from forerun.backends.gpu.language import ROW_TILE, product
from forerun.backends.gpu.passes.unpack import int4_values, int8_values

ROWS = tl.constexpr(ROW_TILE)


@triton.jit
def accumulate(
    h, values, scales, outs_O, first_row, end_row, first_block, end_block,
    FORMAT: tl.constexpr, NUM_IN: tl.constexpr, NUM_OUT: tl.constexpr, GROUP_SIZE: tl.constexpr,
    BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr, NUM_TILES: tl.constexpr,
):  # fmt: skip
    """h W^T over some blocks of inputs: two tiles [R, O] float32, scales of quantised weights applied.

    Args:
        h: [any, NUM_IN] float32, float16 or bfloat16: the dtype that is computed in.
        values, scales: those of a `PackedLinear`.
        outs_O: int32 numbers of the outputs, below NUM_OUT, in any order (clamp those of a last tile).
        first_row, end_row: the tiles are rows first_row.. of h; rows from end_row on count as zeros.
        first_block, end_block: inputs from first_block * BLOCK_IN to end_block * BLOCK_IN, or to NUM_IN.
        FORMAT: "plain", "int8" or "int4".
        GROUP_SIZE: inputs of a group of int4; else 0.
        NUM_TILES: tiles of ROW_TILE rows, 1 or 2. The second tile of sums is all zeros if 1.
    """
    if FORMAT == "int4":
        return accumulate_int4(
            h, values, scales, outs_O, first_row, end_row, first_block, end_block,
            NUM_IN, NUM_OUT, GROUP_SIZE, BLOCK_OUT, BLOCK_IN, NUM_TILES,
        )  # fmt: skip
    else:
        return accumulate_bytes(
            h, values, scales, outs_O, first_row, end_row, first_block, end_block,
            FORMAT, NUM_IN, BLOCK_OUT, BLOCK_IN, NUM_TILES,
        )  # fmt: skip


@triton.jit
def accumulate_bytes(
    h, values, scales, outs_O, first_row, end_row, first_block, end_block,
    FORMAT: tl.constexpr, NUM_IN: tl.constexpr, BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr,
    NUM_TILES: tl.constexpr,
):  # fmt: skip
    """`accumulate` for plain weights and for int8, of which an output has one scale."""
    inputs_I = tl.arange(0, BLOCK_IN)
    weights_IO = values + outs_O.to(tl.int64)[None, :] * NUM_IN + inputs_I[:, None]
    sums_0 = tl.zeros((ROWS, BLOCK_OUT), tl.float32)
    sums_1 = sums_0
    for block in range(first_block, end_block):
        first = block * BLOCK_IN
        if NUM_IN % BLOCK_IN == 0:
            found_IO = tl.load(weights_IO + first)
        else:
            found_IO = tl.load(weights_IO + first, mask=(first + inputs_I < NUM_IN)[:, None], other=0)
        if FORMAT == "int8":
            found_IO = int8_values(found_IO, h.dtype.element_ty)
        rows_RI = load_rows(h, first_row, end_row, first, NUM_IN, BLOCK_IN, BLOCK_IN)
        sums_0 = product(rows_RI, found_IO, sums_0)
        if NUM_TILES == 2:
            rows_RI = load_rows(h, first_row + ROWS, end_row, first, NUM_IN, BLOCK_IN, BLOCK_IN)
            sums_1 = product(rows_RI, found_IO, sums_1)
    if FORMAT == "int8":
        scales_1O = tl.load(scales + outs_O)[None, :]
        sums_0, sums_1 = sums_0 * scales_1O, sums_1 * scales_1O
    return sums_0, sums_1


@triton.jit
def load_rows(h, first_row, end_row, first, NUM_IN: tl.constexpr, SIZE: tl.constexpr, BLOCK_IN: tl.constexpr):
    """A tile of rows, inputs first.. of them; zeros beyond end_row and NUM_IN."""
    rows_R = first_row + tl.arange(0, ROWS)
    inputs_I = first + tl.arange(0, SIZE)
    addresses_RI = h + rows_R[:, None] * NUM_IN + inputs_I[None, :]
    is_there_RI = (rows_R < end_row)[:, None]
    if NUM_IN % BLOCK_IN != 0:
        is_there_RI = is_there_RI & (inputs_I < NUM_IN)[None, :]
    return tl.load(addresses_RI, mask=is_there_RI, other=0.0)


@triton.jit
def accumulate_int4(
    h, values, scales, outs_O, first_row, end_row, first_block, end_block,
    NUM_IN: tl.constexpr, NUM_OUT: tl.constexpr, GROUP_SIZE: tl.constexpr,
    BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr, NUM_TILES: tl.constexpr,
):  # fmt: skip
    """`accumulate` for int4: nibble i of word j of a block is the weight of the block's input i * NUM_WORDS + j."""
    NUM_WORDS: tl.constexpr = BLOCK_IN // 8
    GROUPS: tl.constexpr = BLOCK_IN // GROUP_SIZE
    PLACES: tl.constexpr = 8 // GROUPS
    words_J = tl.arange(0, NUM_WORDS)
    words_JO = values + outs_O[None, :] * NUM_WORDS + words_J[:, None]
    sums_0 = tl.zeros((ROWS, BLOCK_OUT), tl.float32)
    sums_1 = sums_0
    for block in range(first_block, end_block):
        found_JO = tl.load(words_JO + block * (NUM_OUT * NUM_WORDS))
        for group in tl.static_range(GROUPS):
            scale_1O = tl.load(scales + (block * GROUPS + group) * NUM_OUT + outs_O)[None, :]
            values_of = int4_values(found_JO, scale_1O & 15, h.dtype.element_ty)
            part_0 = tl.zeros((ROWS, BLOCK_OUT), tl.float32)
            part_1 = part_0
            for place in tl.static_range(group * PLACES, (group + 1) * PLACES):
                first = block * BLOCK_IN + place * NUM_WORDS
                rows_RJ = load_rows(h, first_row, end_row, first, NUM_IN, NUM_WORDS, BLOCK_IN)
                part_0 = product(rows_RJ, values_of[place], part_0)
                if NUM_TILES == 2:
                    rows_RJ = load_rows(h, first_row + ROWS, end_row, first, NUM_IN, NUM_WORDS, BLOCK_IN)
                    part_1 = product(rows_RJ, values_of[place], part_1)
            scale_1O = scale_1O.to(tl.float32, bitcast=True)
            sums_0 += part_0 * scale_1O
            if NUM_TILES == 2:
                sums_1 += part_1 * scale_1O
    return sums_0, sums_1
