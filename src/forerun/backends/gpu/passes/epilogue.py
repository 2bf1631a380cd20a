"""The last steps of a linear layer after its product: the scale of the input's norm, and the bias.

Legend: R rows of a tile (ROW_TILE), O outputs of a tile (block_out), N numbers of a row, P partial sums of its squares.
"""

import triton
import triton.language as tl

from forerun.backends.gpu.kernel_parts import ROWS, no_tiles

EARLY_TILES = tl.constexpr(2)  # Partial squares of more tiles would take registers from the product.
EARLY_OUT = tl.constexpr(64)  # So would those of two tiles in fewer than four warps.
MOST_LEVELS = tl.constexpr(16)  # Enough for rows of 65536 numbers.


@triton.jit
def load_norm(norm, first_row, end_row, NORM: tl.constexpr, SHAPE: tl.constexpr):
    """Load the norm's sums of squares before the product: a tuple with one tensor for each tile of rows.

    It is the tile's partial squares [R, P], which are added up after the product, so that its weights need not wait.
    If these would take registers from the product, it is the tile's `row_scales` [R]; without a norm it is 0.

    Args:
        norm: the `sums` of an `InputNorm`; NORM is its `NormShape`.
    """
    NUM_TILES: tl.constexpr = SHAPE.num_row_tiles
    loaded = no_tiles()
    for tile in tl.static_range(NUM_TILES):
        if NORM.num_parts == 0:
            loaded = loaded + (0,)
        else:
            squares_RP = squares_of_tile(norm, first_row + tile * ROWS, end_row, NORM)
            if NUM_TILES <= EARLY_TILES and SHAPE.block_out >= EARLY_OUT:
                loaded = loaded + (squares_RP,)
            else:
                loaded = loaded + (row_scales(squares_RP, norm[2], NORM),)
    return loaded


@triton.jit
def squares_of_tile(norm, first_row, end_row, NORM: tl.constexpr):
    """[R, P] the partial sums of squares of a tile of rows; rows from end_row on repeat the last row's."""
    squares, row_stride, _scale = norm
    PARTS: tl.constexpr = triton.next_power_of_2(NORM.num_parts)
    rows_R = tl.minimum(first_row + tl.arange(0, ROWS), end_row - 1)
    parts_P = tl.arange(0, PARTS)
    is_there_P = parts_P < NORM.num_parts
    return tl.load(squares + parts_P[None, :] * row_stride + rows_R[:, None], mask=is_there_P[None, :], other=0.0)


@triton.jit
def norm_and_bias(sums_RO, bias, norm, loaded, outs_O, NORM: tl.constexpr):
    """y[r, o] = sums[r, o] * row_scales[r] + bias[o], [R, O] float32, capped if NORM has a cap; `bias` may be None.

    Args:
        loaded: the tile's tensor of `load_norm`.
    """
    if NORM.num_parts > 0:
        if len(loaded.shape) == 2:  # Squares.
            loaded = row_scales(loaded, norm[2], NORM)
        sums_RO *= loaded[:, None]
    if bias is not None:
        sums_RO += tl.load(bias + outs_O)[None, :]
    if NORM.cap > 0.0:
        decays_RO = tl.exp(tl.abs(sums_RO) * (-2.0 / NORM.cap))  # tanh z = (1 - exp(-2 z)) / (1 + exp(-2 z)), z >= 0.
        caps_RO = tl.where(sums_RO < 0.0, -NORM.cap, NORM.cap)
        sums_RO = caps_RO * (1.0 - decays_RO) / (1.0 + decays_RO)
    return sums_RO


@triton.jit
def row_scales(squares_RP, scale, NORM: tl.constexpr):
    """1 / sqrt(sum over parts of squares[r, part] / size + eps) / scale: [R], the factors of a tile's rows."""
    PARTS: tl.constexpr = triton.next_power_of_2(NORM.num_parts)
    return 1.0 / tl.sqrt(sum_of_pairs(squares_RP, PARTS) / NORM.size + NORM.eps) / scale


@triton.jit
def sum_of_pairs(numbers_RN, SIZE: tl.constexpr):
    """[R]: the sum of each row by pairs: neighbours are added, then neighbouring sums. SIZE is a power of two.

    The fixed order makes results the same in all kernels. The order of `tl.sum` depends on how a tensor is distributed
    over threads, and so on the rest of the kernel.
    """
    sums = numbers_RN
    for level in tl.static_range(MOST_LEVELS):
        if SIZE >> level > 1:
            sums = tl.sum(tl.reshape(sums, (ROWS, SIZE >> (level + 1), 2)), 2)
    return tl.reshape(sums, (ROWS,))


@triton.jit
def keep_left_out(after_RO, before_RO, row_skips, rows_R, end_row, sublayer, num_sublayers):
    """The new residual stream, or the old one for rows that skip this sublayer; `row_skips` may be None."""
    if row_skips is not None:
        skips_R = tl.load(row_skips + rows_R * num_sublayers + sublayer, mask=rows_R < end_row, other=1)
        after_RO = tl.where((skips_R != 0)[:, None], before_RO, after_RO)
    return after_RO


@triton.jit
def write_residual(after_RO, x, next_norm, tile, rows_R, places_O, end_row, SIZE: tl.constexpr):
    """Write a tile of the new residual stream to x, and the next norm's inputs.

    Args:
        after_RO: the tile, with zeros beyond `end_row` and SIZE.
        next_norm: the `tensors` of a `NextNorm`.
        tile: the tile's number among the tiles of a row.
    """
    BLOCK_OUT: tl.constexpr = after_RO.shape[1]
    next_weight, next_h, next_squares, row_stride, next_scale = next_norm
    is_there_RO = (rows_R < end_row)[:, None] & (places_O < SIZE)[None, :]
    places_RO = rows_R[:, None] * SIZE + places_O[None, :]
    tl.store(x + places_RO, after_RO, mask=is_there_RO)
    weight_O = tl.load(next_weight + places_O, mask=places_O < SIZE, other=0.0)
    next_RO = after_RO * weight_O[None, :] * next_scale
    tl.store(next_h + places_RO, next_RO.to(next_h.dtype.element_ty), mask=is_there_RO)
    squares_R = sum_of_pairs(after_RO * after_RO, BLOCK_OUT)
    tl.store(next_squares + tile * row_stride + rows_R, squares_R, mask=rows_R < end_row)
