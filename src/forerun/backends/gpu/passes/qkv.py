"""Computes queries, keys and values in one kernel: product, bias, head norms, rotation, and writes to the cache.

Legend: T rows, I inputs, H query heads and K key/value heads, D head size, S slots; in kernels R rows of a tile
(ROW_TILE), O outputs of a program (one head), P numbers of half a head.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.kernel_parts import ROWS, await_inputs
from forerun.backends.gpu.passes.epilogue import load_norm, norm_and_bias, sum_of_pairs
from forerun.backends.gpu.passes.linear_buffers import InputNorm, SplitWorkspace
from forerun.backends.gpu.passes.packed_linear import DeviceLinear
from forerun.backends.gpu.passes.split_k import request_weights, split_k_matmul, whole_sums
from forerun.backends.gpu.row_table import RowTable
from forerun.core.model_spec import ModelSpec


class HeadsShape(NamedTuple):
    """The heads that the kernel is compiled for; `norm_eps` is the epsilon of the head norms."""

    num_heads: int
    num_kv_heads: int
    norm_eps: float


def qkv(
    h: Tensor, packed: DeviceLinear, q: Tensor, keys_SKD: Tensor, values_SKD: Tensor, cos_sin_P2D: Tensor,
    rows: RowTable, *, num_rows: int, spec: ModelSpec, head_norms: tuple[Tensor, ...] | None,
    query_scales_P: Tensor | None, norm: InputNorm, workspace: SplitWorkspace, overlaps: bool,
) -> None:  # fmt: skip
    """Write queries to q [any, H * D] in its dtype, and keys and values to the slots of their rows.

    Args:
        packed: the weights of queries, keys and values stacked, packed with `head_dim`.
        cos_sin_P2D: float32 from `rope_table`: cos and sin of each position, with the first half of sin negated.
        rows: slots and positions of the rows.
        spec: the layer's heads, see `ModelSpec.of_layer`; with num_kv_heads 0 the layer has queries alone.
        head_norms: the weights, float32 [D] each, of the RMS norms of query heads and key heads before the rotation
            (Qwen3), or None; if there are three, the last is that of value heads (Gemma 4).
        query_scales_P: float32 factors of queries by their position, or None.
    """
    assert packed.tiles.block_out * (spec.num_heads + 2 * spec.num_kv_heads) == packed.num_out, (
        "a program must do one head"
    )
    assert keys_SKD.stride() == values_SKD.stride(), "keys and values lie alike"
    assert keys_SKD.stride()[1:] == (packed.tiles.block_out, 1), "the heads of a slot lie together"
    qkv_kernel[packed.grid(num_rows)](
        h, packed.weight, workspace, (q, keys_SKD, values_SKD, keys_SKD.stride(0)),
        (cos_sin_P2D, rows.positions, rows.slots, query_scales_P), head_norms, num_rows, norm.sums,
        NORM=norm.shape, HEADS=HeadsShape(spec.num_heads, spec.num_kv_heads, spec.norm_eps),
        **packed.options(num_rows, overlaps),
    )  # fmt: skip


@triton.jit(do_not_specialize=["end_row"])
def qkv_kernel(
    h, weight, workspace, outputs, rows, head_norms, end_row, norm,
    SHAPE: tl.constexpr, NORM: tl.constexpr, HEADS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """q[t, n] = rope(norm_head(y[t, n]), positions[t]) * query_scales[positions[t]] for a query head n;
    keys[slots[t], n] likewise for a key head, unscaled; values[slots[t], n] = y[t, n] for a value head;
    y[t] = row_scales[t] * (W h[t]) + bias as [H + 2 K, D].

    h [T, I] in the compute dtype, W [(H + 2 K) D, I] packed, outputs (q [T, H D], keys and values [S, K, D], stride of
    a slot), head_norms (weights [D] of queries, keys and, if they are normed, values) or None, rows (cos_sin
    [positions, 2, D], positions [T], slots [T], query_scales [positions] or None). A program computes one head of a
    block of rows.
    """
    NUM_TILES: tl.constexpr = SHAPE.num_row_tiles
    HEAD_DIM: tl.constexpr = SHAPE.block_out
    HALF: tl.constexpr = HEAD_DIM // 2
    FIRST_VALUE: tl.constexpr = HEADS.num_heads + HEADS.num_kv_heads
    q, keys, values, slot_stride = outputs
    cos_sin, positions, slots, query_scales = rows
    head = tl.program_id(1)
    first = tl.program_id(0) * (NUM_TILES * ROWS)
    outs_O = tl.arange(0, HEAD_DIM)  # 0, D / 2, 1, D / 2 + 1, ...: a rotated pair stays in one thread.
    outs_O = head * HEAD_DIM + outs_O // 2 + outs_O % 2 * HALF
    request_weights(weight, outs_O, SHAPE, OVERLAPS)
    await_inputs(OVERLAPS)
    loaded = load_norm(norm, first, end_row, NORM, SHAPE)
    sums, is_last = split_k_matmul(h, weight, workspace, outs_O, first, end_row, SHAPE)
    if is_last:
        for tile in tl.static_range(NUM_TILES):
            sums_RO = whole_sums(sums, workspace, tile, SHAPE)
            start = first + tile * ROWS
            sums_RO = norm_and_bias(sums_RO, weight.bias, norm, loaded[tile], outs_O, NORM)
            low_RP, high_RP = tl.split(tl.reshape(sums_RO, (ROWS, HALF, 2)))
            rows_R = start + tl.arange(0, ROWS)
            low_RP, high_RP = norm_head(low_RP, high_RP, head_norms, head, HALF, HEADS)
            is_rotated_R = rows_R < tl.where(head < FIRST_VALUE, end_row, 0)
            low_RP, high_RP = rotate_head(low_RP, high_RP, cos_sin, positions, rows_R, is_rotated_R, HALF)
            if query_scales is not None:
                is_scaled_R = rows_R < tl.where(head < HEADS.num_heads, end_row, 0)
                low_RP, high_RP = scale_queries(low_RP, high_RP, query_scales, positions, rows_R, is_scaled_R)
            if head < HEADS.num_heads:
                places_R = q + rows_R * (HEADS.num_heads * HEAD_DIM) + head * HEAD_DIM
            else:
                slots_R = tl.load(slots + rows_R, mask=rows_R < end_row, other=0).to(tl.int64) * slot_stride
                if head < FIRST_VALUE:
                    places_R = keys + slots_R + (head - HEADS.num_heads) * HEAD_DIM
                else:
                    places_R = values + slots_R + (head - FIRST_VALUE) * HEAD_DIM
            places_RP = places_R[:, None] + tl.arange(0, HALF)[None, :]
            tl.store(places_RP, low_RP.to(q.dtype.element_ty), mask=(rows_R < end_row)[:, None])
            tl.store(places_RP + HALF, high_RP.to(q.dtype.element_ty), mask=(rows_R < end_row)[:, None])


@triton.jit
def norm_head(low_RP, high_RP, head_norms, head, HALF: tl.constexpr, HEADS: tl.constexpr):
    """x[d] / sqrt(mean over d of x[d]^2 + eps) * weight[d] for a head of queries, keys or values, where the model has
    weights.
    """
    if head_norms is not None:
        weight = head_norms[0] if head < HEADS.num_heads else head_norms[1]
        is_normed = head < HEADS.num_heads + HEADS.num_kv_heads
        if len(head_norms) == 3:
            weight = weight if is_normed else head_norms[2]
            is_normed = head >= 0
        sums_R = sum_of_pairs(low_RP * low_RP, HALF) + sum_of_pairs(high_RP * high_RP, HALF)
        scale_R1 = (1.0 / tl.sqrt(sums_R / (2 * HALF) + HEADS.norm_eps))[:, None]
        places_P = tl.arange(0, HALF)
        low_RP = tl.where(is_normed, low_RP * scale_R1 * tl.load(weight + places_P)[None, :], low_RP)
        high_RP = tl.where(is_normed, high_RP * scale_R1 * tl.load(weight + HALF + places_P)[None, :], high_RP)
    return low_RP, high_RP


@triton.jit
def rotate_head(low_RP, high_RP, cos_sin, positions, rows_R, is_rotated_R, HALF: tl.constexpr):
    """(low cos - high sin, high cos + low sin): [R, P] each, with the angles of the rows' positions, which are the same
    for both halves; unchanged if a row or a head is not rotated.
    """
    positions_R = tl.load(positions + rows_R, mask=is_rotated_R, other=0)
    places_RP = cos_sin + positions_R[:, None] * (4 * HALF) + HALF + tl.arange(0, HALF)[None, :]
    cos_RP = tl.load(places_RP, mask=is_rotated_R[:, None], other=1.0)
    sin_RP = tl.load(places_RP + 2 * HALF, mask=is_rotated_R[:, None], other=0.0)
    return low_RP * cos_RP - high_RP * sin_RP, high_RP * cos_RP + low_RP * sin_RP


@triton.jit
def scale_queries(low_RP, high_RP, query_scales, positions, rows_R, is_scaled_R):
    """Both halves of a head times the scale of the rows' positions."""
    positions_R = tl.load(positions + rows_R, mask=is_scaled_R, other=0)
    scales_R1 = tl.load(query_scales + positions_R, mask=is_scaled_R, other=1.0)[:, None]
    return low_RP * scales_R1, high_RP * scales_R1
