"""Looks up the embeddings of token ids, and writes the inputs of the first linear layer.

Legend: T rows, V vocabulary, H hidden size.
"""

import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.kernel_parts import await_inputs, launch_options
from forerun.backends.gpu.passes.linear_buffers import NextNorm


def embed(
    table_VH: Tensor, token_ids_T: Tensor, x: Tensor, next_norm: NextNorm, *, scale: float, num_rows: int,
    overlaps: bool,
) -> None:  # fmt: skip
    """x[t] = scale * table[token_ids[t]] in float32; a row's sum of squares has one part, the first of `squares`."""
    size = table_VH.shape[1]
    embed_kernel[(num_rows,)](
        table_VH, token_ids_T, x, next_norm.tensors,
        SCALE=scale, SIZE=size, BLOCK=triton.next_power_of_2(size), OVERLAPS=overlaps,
        **launch_options(num_warps=8 if size > 1024 else 4, overlaps=overlaps),
    )  # fmt: skip


@triton.jit
def embed_kernel(
    table, token_ids, x, next_norm,
    SCALE: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """x[t] = SCALE * table[token_ids[t]], next_h[t] = x[t] * next_weight * next_scale, next_squares[0, t] = sum of
    x[t]^2.

    table [V, H], token_ids [T], x [T, H] float32, next_weight [H], next_h [T, H], next_squares [1, T]. A program
    computes one row t; SIZE is H, BLOCK the next power of two.
    """
    next_weight, next_h, next_squares, _row_stride, next_scale = next_norm
    row = tl.program_id(0)
    features_H = tl.arange(0, BLOCK)
    is_feature_H = features_H < SIZE
    weight_H = tl.load(next_weight + features_H, mask=is_feature_H, other=0.0)
    await_inputs(OVERLAPS)
    token_id = tl.load(token_ids + row).to(tl.int64)
    x_H = tl.load(table + token_id * SIZE + features_H, mask=is_feature_H, other=0.0).to(tl.float32)
    if SCALE != 1.0:
        x_H *= SCALE
    places_H = row.to(tl.int64) * SIZE + features_H
    tl.store(x + places_H, x_H, mask=is_feature_H)
    tl.store(next_h + places_H, (x_H * weight_H * next_scale).to(next_h.dtype.element_ty), mask=is_feature_H)
    tl.store(next_squares + row, tl.sum(x_H * x_H))
