"""The one loop over weights: sums of a tile of outputs for one or two tiles of rows, in all three weight formats.

Legend: R rows of a tile (ROW_TILE), O outputs of a tile (block_out), I input features of a block (block_in), J words of
a block, a word being eight int4 weights.
"""

import triton
import triton.language as tl

from forerun.backends.gpu.language import ROWS, product
from forerun.backends.gpu.passes.dequantise import int4_values, int8_values


@triton.jit
def matmul(h, weight, outs_O, first_row, end_row, first_block, end_block, SHAPE: tl.constexpr):
    """y[r, o] = sum over i of h[r, i] W[o, i] for some blocks of inputs: two tiles [R, O] float32, scales applied.

    Args:
        h: [any, num_in] float32, float16 or bfloat16: the dtype that is computed in.
        weight: a `LinearWeight`; its bias is not added.
        outs_O: int32 numbers of the outputs, below num_out, in any order (clamp those of a last tile).
        first_row, end_row: the tiles are rows first_row.. of h; rows from end_row on count as zeros.
        first_block, end_block: inputs from first_block * block_in to end_block * block_in, or to num_in.
        SHAPE: a `LinearShape`. The second tile of sums is all zeros if there is one tile of rows.
    """
    if SHAPE.weight_format == "int4":
        return matmul_int4(h, weight, outs_O, first_row, end_row, first_block, end_block, SHAPE)
    else:
        return matmul_bytes(h, weight, outs_O, first_row, end_row, first_block, end_block, SHAPE)


@triton.jit
def matmul_bytes(h, weight, outs_O, first_row, end_row, first_block, end_block, SHAPE: tl.constexpr):
    """`matmul` for plain weights and for int8, of which an output has one scale."""
    BLOCK_IN: tl.constexpr = SHAPE.block_in
    BLOCK_OUT: tl.constexpr = SHAPE.block_out
    inputs_I = tl.arange(0, BLOCK_IN)
    weights_IO = weight.matrix + outs_O.to(tl.int64)[None, :] * SHAPE.num_in + inputs_I[:, None]
    sums_0 = tl.zeros((ROWS, BLOCK_OUT), tl.float32)
    sums_1 = sums_0
    for block in range(first_block, end_block):
        first = block * BLOCK_IN
        if SHAPE.num_in % BLOCK_IN == 0:
            found_IO = tl.load(weights_IO + first)
        else:
            found_IO = tl.load(weights_IO + first, mask=(first + inputs_I < SHAPE.num_in)[:, None], other=0)
        if SHAPE.weight_format == "int8":
            found_IO = int8_values(found_IO, h.dtype.element_ty)
        rows_RI = load_rows(h, first_row, end_row, first, BLOCK_IN, SHAPE)
        sums_0 = product(rows_RI, found_IO, sums_0)
        if SHAPE.num_row_tiles == 2:
            rows_RI = load_rows(h, first_row + ROWS, end_row, first, BLOCK_IN, SHAPE)
            sums_1 = product(rows_RI, found_IO, sums_1)
    if SHAPE.weight_format == "int8":
        scales_1O = tl.load(weight.scales + outs_O)[None, :]
        sums_0, sums_1 = sums_0 * scales_1O, sums_1 * scales_1O
    return sums_0, sums_1


@triton.jit
def load_rows(h, first_row, end_row, first, SIZE: tl.constexpr, SHAPE: tl.constexpr):
    """A tile of rows, SIZE inputs of them from `first` on; zeros beyond end_row and num_in."""
    rows_R = first_row + tl.arange(0, ROWS)
    inputs_I = first + tl.arange(0, SIZE)
    addresses_RI = h + rows_R[:, None] * SHAPE.num_in + inputs_I[None, :]
    is_there_RI = (rows_R < end_row)[:, None]
    if SHAPE.num_in % SHAPE.block_in != 0:
        is_there_RI = is_there_RI & (inputs_I < SHAPE.num_in)[None, :]
    return tl.load(addresses_RI, mask=is_there_RI, other=0.0)


@triton.jit
def matmul_int4(h, weight, outs_O, first_row, end_row, first_block, end_block, SHAPE: tl.constexpr):
    """`matmul` for int4: nibble i of word j of a block is the weight of the block's input i * NUM_WORDS + j."""
    BLOCK_OUT: tl.constexpr = SHAPE.block_out
    NUM_WORDS: tl.constexpr = SHAPE.block_in // 8
    GROUPS: tl.constexpr = SHAPE.block_in // SHAPE.group_size
    PLACES: tl.constexpr = 8 // GROUPS
    words_J = tl.arange(0, NUM_WORDS)
    words_JO = weight.matrix + outs_O[None, :] * NUM_WORDS + words_J[:, None]
    sums_0 = tl.zeros((ROWS, BLOCK_OUT), tl.float32)
    sums_1 = sums_0
    for block in range(first_block, end_block):
        found_JO = tl.load(words_JO + block * (SHAPE.num_out * NUM_WORDS))
        for group in tl.static_range(GROUPS):
            scale_1O = tl.load(weight.scales + (block * GROUPS + group) * SHAPE.num_out + outs_O)[None, :]
            values_of = int4_values(found_JO, scale_1O & 15, h.dtype.element_ty)
            part_0 = tl.zeros((ROWS, BLOCK_OUT), tl.float32)
            part_1 = part_0
            for place in tl.static_range(group * PLACES, (group + 1) * PLACES):
                first = block * SHAPE.block_in + place * NUM_WORDS
                rows_RJ = load_rows(h, first_row, end_row, first, NUM_WORDS, SHAPE)
                part_0 = product(rows_RJ, values_of[place], part_0)
                if SHAPE.num_row_tiles == 2:
                    rows_RJ = load_rows(h, first_row + ROWS, end_row, first, NUM_WORDS, SHAPE)
                    part_1 = product(rows_RJ, values_of[place], part_1)
            scale_1O = (scale_1O & -16).to(tl.float32, bitcast=True)  # The zero is no part of it.
            sums_0 += part_0 * scale_1O
            if SHAPE.num_row_tiles == 2:
                sums_1 += part_1 * scale_1O
    return sums_0, sums_1
