"""Adds the normalised output of a sublayer to the residual stream, and writes the next linear layer's inputs.

So the factor of a layer (Gemma 4) is here too, and the inputs of a norm alone.

A norm needs a whole row, and the products of a row are those of several programs, so this is a kernel of its own.

Legend: T rows, H hidden size, S sublayers.
"""

import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.kernel_parts import await_inputs, launch_options
from forerun.backends.gpu.passes.linear_buffers import NextNorm


def norm_add(
    branch: Tensor | None, weight_H: Tensor | None, x: Tensor, next_norm: NextNorm, *, eps: float, num_rows: int,
    row_skips: Tensor | None = None, sublayer: int = 0, num_sublayers: int = 0, scale: float | None = None,
    overlaps: bool,
) -> None:  # fmt: skip
    """x += norm(branch) in float32, then x *= scale; a row's sum of squares has one part, the first of `squares`.

    Args:
        branch: float32 [any, H], the sublayer's output; None: nothing is added.
        weight_H: float32, the norm's weight, if there is a branch.
        row_skips: as for `linear_add`; rows that skip the sublayer are scaled too.
        scale: None: x is not multiplied.
    """
    size = x.shape[1]
    norm_add_kernel[(num_rows,)](
        branch, weight_H, x, row_skips, sublayer, num_sublayers, scale, next_norm.tensors,
        EPS=eps, SIZE=size, BLOCK=triton.next_power_of_2(size), OVERLAPS=overlaps,
        **launch_options(num_warps=8 if size > 1024 else 4, overlaps=overlaps),
    )  # fmt: skip


@triton.jit(do_not_specialize=["sublayer", "num_sublayers"])
def norm_add_kernel(
    branch, weight, x, row_skips, sublayer, num_sublayers, scale, next_norm,
    EPS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """x[t] += branch[t] / sqrt(mean of branch[t]^2 + EPS) * weight unless row_skips[t, sublayer], if there is a branch;
    then x[t] *= scale, if there is one; next_h and next_squares follow from the new x as in `embed_kernel`.

    A program computes one row t; SIZE is H, BLOCK the next power of two.
    """
    next_weight, next_h, next_squares, _row_stride, next_scale = next_norm
    row = tl.program_id(0)
    features_H = tl.arange(0, BLOCK)
    is_feature_H = features_H < SIZE
    if branch is not None:
        weight_H = tl.load(weight + features_H, mask=is_feature_H, other=0.0)
    next_weight_H = tl.load(next_weight + features_H, mask=is_feature_H, other=0.0)
    await_inputs(OVERLAPS)
    places_H = row.to(tl.int64) * SIZE + features_H
    if branch is None:
        x_H = tl.load(x + places_H, mask=is_feature_H, other=0.0)
    else:
        branch_H = tl.load(branch + places_H, mask=is_feature_H, other=0.0)
        before_H = tl.load(x + places_H, mask=is_feature_H, other=0.0)
        x_H = before_H + branch_H * (1.0 / tl.sqrt(tl.sum(branch_H * branch_H) / SIZE + EPS)) * weight_H
        if row_skips is not None:
            x_H = tl.where(tl.load(row_skips + row * num_sublayers + sublayer) != 0, before_H, x_H)
    if scale is not None:
        x_H *= scale
    tl.store(x + places_H, x_H, mask=is_feature_H)
    tl.store(next_h + places_H, (x_H * next_weight_H * next_scale).to(next_h.dtype.element_ty), mask=is_feature_H)
    tl.store(next_squares + row, tl.sum(x_H * x_H))
