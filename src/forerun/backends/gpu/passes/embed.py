"""Token ids to the residual stream, with what the first linear reads of it.

Legend: T rows, V vocabulary, H hidden size.
"""

import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.language import await_inputs, launch_options
from forerun.backends.gpu.passes.launching import NextNorm


@triton.jit
def embed_rows(
    table, token_ids, x, norm_weight, h, squares,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, H_SCALE: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    features_H = tl.arange(0, BLOCK)
    is_feature_H = features_H < SIZE
    weight_H = tl.load(norm_weight + features_H, mask=is_feature_H, other=0.0)
    await_inputs(OVERLAPS)
    token_id = tl.load(token_ids + row).to(tl.int64)
    x_H = tl.load(table + token_id * SIZE + features_H, mask=is_feature_H, other=0.0).to(tl.float32)
    places_H = row.to(tl.int64) * SIZE + features_H
    tl.store(x + places_H, x_H, mask=is_feature_H)
    tl.store(h + places_H, (x_H * weight_H * H_SCALE).to(h.dtype.element_ty), mask=is_feature_H)
    tl.store(squares + row, tl.sum(x_H * x_H))


def embed(
    table_VH: Tensor, token_ids_T: Tensor, x: Tensor, next_norm: NextNorm, *, num_rows: int, overlaps: bool
) -> None:
    """x[t] = table[token_ids[t]] in float32; the sum of squares of a row is one tile, the first row of `squares`."""
    size = table_VH.shape[1]
    embed_rows[(num_rows,)](
        table_VH, token_ids_T, x, next_norm.weight, next_norm.h, next_norm.squares,
        SIZE=size, BLOCK=triton.next_power_of_2(size), H_SCALE=next_norm.scale, OVERLAPS=overlaps,
        **launch_options(num_warps=8 if size > 1024 else 4, overlaps=overlaps),
    )  # fmt: skip
