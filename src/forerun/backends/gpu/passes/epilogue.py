"""What becomes of a linear layer's whole sums: the norm that its input lacked, and the bias.

Legend: R rows of a tile (ROW_TILE), O outputs of a tile (block_out), N numbers of a row.
"""

import triton
import triton.language as tl

from forerun.backends.gpu.language import ROWS

PARTS_PER_STEP = tl.constexpr(32)  # Loads of partial sums that are under way together.
MOST_LEVELS = tl.constexpr(16)  # Enough for rows of 65536 numbers.


@triton.jit
def norm_and_bias(sums_RO, bias, norm, outs_O, first_row, end_row, NORM: tl.constexpr):
    """y[r, o] = sums[r, o] * row_scales[r] + bias[o], [R, O] float32; `bias` may be None."""
    sums_RO *= row_scales(norm, first_row, end_row, NORM)[:, None]
    if bias is not None:
        sums_RO += tl.load(bias + outs_O)[None, :]
    return sums_RO


@triton.jit
def row_scales(norm, first_row, end_row, NORM: tl.constexpr):
    """1 / sqrt(sum over parts of squares[part, r] / size + eps) / scale: [R], what the sums of a row still lack.

    Args:
        norm: the `sums` of an `InputNorm`.
        NORM: its `NormShape`.
    """
    squares, row_stride, scale = norm
    STEP: tl.constexpr = min(NORM.num_parts, PARTS_PER_STEP)
    rows_R = tl.minimum(first_row + tl.arange(0, ROWS), end_row - 1)
    sums_R = tl.zeros((ROWS,), tl.float32)
    for part in range(0, NORM.num_parts, STEP):
        for place in tl.static_range(STEP):
            is_part = part + place < NORM.num_parts
            sums_R += tl.load(squares + (part + place) * row_stride + rows_R, mask=is_part, other=0.0)
    return 1.0 / tl.sqrt(sums_R / NORM.size + NORM.eps) / scale


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
def keep_left_out(after_RO, before_RO, row_skips, rows_R, end_row, sublayer, num_sublayers):
    """The new residual stream, but of rows that leave this sublayer out the old one; `row_skips` may be None."""
    if row_skips is not None:
        skips_R = tl.load(row_skips + rows_R * num_sublayers + sublayer, mask=rows_R < end_row, other=1)
        after_RO = tl.where((skips_R != 0)[:, None], before_RO, after_RO)
    return after_RO


@triton.jit
def write_residual(after_RO, x, next_norm, tile, rows_R, places_O, end_row, SIZE: tl.constexpr):
    """A tile of the new residual stream to x, and to the next norm what it needs; zeros beyond `end_row` and SIZE.

    Args:
        next_norm: the `tensors` of a `NextNorm`.
        tile: its number among those of a row.
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
