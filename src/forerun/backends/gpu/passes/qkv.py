"""Queries, keys and values in one kernel: product, bias, norms of heads, rotation, and keys and values into the cache.

Legend: R rows of a tile (ROW_TILE), D head size, P places of half a head, S slots, K key/value heads.
"""

import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.language import ROW_TILE, await_inputs
from forerun.backends.gpu.passes.finish import finished_sums, row_scales, sum_of_pairs
from forerun.backends.gpu.passes.launching import (
    ROWS_PER_PROGRAM,
    NormFold,
    Workspace,
    grid_of,
    norm_arguments,
    shape_constants,
)
from forerun.backends.gpu.passes.linear import options_of
from forerun.backends.gpu.passes.weights import PackedLinear
from forerun.backends.gpu.row_table import RowTable
from forerun.core.model_spec import ModelSpec

ROWS = tl.constexpr(ROW_TILE)
ROWS_OF_PROGRAM = tl.constexpr(ROWS_PER_PROGRAM)


def qkv(
    h: Tensor, packed: PackedLinear, q: Tensor, keys_SKD: Tensor, values_SKD: Tensor, turns_P2D: Tensor,
    rows: RowTable, *, num_rows: int, spec: ModelSpec, head_norms: tuple[Tensor, Tensor] | None, fold: NormFold | None,
    workspace: Workspace, overlaps: bool,
) -> None:  # fmt: skip
    """Queries to q [any, heads * D] in its dtype, keys and values to the slots of their rows.

    Args:
        packed: of queries, keys and values below each other, packed with `head_dim`.
        turns_P2D: float32, what `rope_table` makes: cos and sin, the first half of sin negated.
        rows: slots and positions of the rows.
        head_norms: float32 [D] each, of the RMS norms of query heads and key heads before the rotation (Qwen3).
    """
    assert packed.tiles.block_out * (spec.num_heads + 2 * spec.num_kv_heads) == packed.num_out, (
        "a program must do one head"
    )
    assert keys_SKD.stride() == values_SKD.stride(), "keys and values lie alike"
    assert keys_SKD.stride()[1:] == (packed.tiles.block_out, 1), "the heads of a slot lie together"
    query_norm_D, key_norm_D = head_norms or (None, None)
    _qkv[grid_of(packed, num_rows)](
        h, packed.values, packed.scales, packed.bias, workspace.partials, workspace.counters,
        q, keys_SKD, values_SKD, keys_SKD.stride(0), turns_P2D, rows.positions, rows.slots,
        query_norm_D, key_norm_D, num_rows, spec.num_heads, spec.num_kv_heads, spec.norm_eps,
        **norm_arguments(fold), **shape_constants(packed, num_rows), OVERLAPS=overlaps, **options_of(packed, overlaps),
    )  # fmt: skip


@triton.jit(do_not_specialize=["end_row"])
def _qkv(
    h, values, scales, bias, partials, counters, q, keys, cached_values, slot_stride, turns, positions, slots,
    query_norm, key_norm, end_row,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_EPS: tl.constexpr, squares, row_stride,
    NUM_PARTS: tl.constexpr, SIZE: tl.constexpr, EPS: tl.constexpr, SCALE: tl.constexpr,
    FORMAT: tl.constexpr, NUM_IN: tl.constexpr, NUM_OUT: tl.constexpr, GROUP_SIZE: tl.constexpr,
    BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr, NUM_SPLITS: tl.constexpr, IS_WIDE: tl.constexpr,
    NUM_TILES: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = BLOCK_OUT // 2
    head, first = tl.program_id(1), tl.program_id(0) * ROWS_OF_PROGRAM
    outs_O = tl.arange(0, BLOCK_OUT)  # 0, D / 2, 1, D / 2 + 1, ...: what is turned together stays in one thread
    outs_O = head * BLOCK_OUT + outs_O // 2 + outs_O % 2 * HALF
    await_inputs(OVERLAPS)
    sums_0, sums_1, is_finished = finished_sums(
        h, values, scales, partials, counters, head, tl.program_id(2), outs_O, first, end_row,
        FORMAT, NUM_IN, NUM_OUT, GROUP_SIZE, BLOCK_OUT, BLOCK_IN, NUM_SPLITS, IS_WIDE, NUM_TILES,
    )  # fmt: skip
    if is_finished:
        for tile in tl.static_range(NUM_TILES):
            sums_RO = sums_0 if tile == 0 else sums_1
            start = first + tile * ROWS
            if NUM_PARTS > 0:
                sums_RO *= row_scales(squares, start, end_row, row_stride, NUM_PARTS, SIZE, EPS, SCALE)[:, None]
            if bias is not None:
                sums_RO += tl.load(bias + outs_O)[None, :]
            low_RP, high_RP = tl.split(tl.reshape(sums_RO, (ROWS, HALF, 2)))
            rows_R = start + tl.arange(0, ROWS)
            low_RP, high_RP = norm_head(
                low_RP, high_RP, query_norm, key_norm, head, NUM_HEADS, NUM_KV_HEADS, HEAD_EPS, HALF
            )
            is_turned_R = rows_R < tl.where(head < NUM_HEADS + NUM_KV_HEADS, end_row, 0)
            low_RP, high_RP = turn_head(low_RP, high_RP, turns, positions, rows_R, is_turned_R, HALF)
            if head < NUM_HEADS:
                places_R = q + rows_R * (NUM_HEADS * BLOCK_OUT) + head * BLOCK_OUT
            else:
                slots_R = tl.load(slots + rows_R, mask=rows_R < end_row, other=0).to(tl.int64) * slot_stride
                if head < NUM_HEADS + NUM_KV_HEADS:
                    places_R = keys + slots_R + (head - NUM_HEADS) * BLOCK_OUT
                else:
                    places_R = cached_values + slots_R + (head - NUM_HEADS - NUM_KV_HEADS) * BLOCK_OUT
            places_RP = places_R[:, None] + tl.arange(0, HALF)[None, :]
            tl.store(places_RP, low_RP.to(q.dtype.element_ty), mask=(rows_R < end_row)[:, None])
            tl.store(places_RP + HALF, high_RP.to(q.dtype.element_ty), mask=(rows_R < end_row)[:, None])


@triton.jit
def norm_head(
    low_RP, high_RP, query_norm, key_norm, head,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, EPS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """A head of queries or keys with its RMS norm, if there are weights; one of values as it is."""
    if query_norm is not None:
        weight = query_norm if head < NUM_HEADS else key_norm
        is_normed = head < NUM_HEADS + NUM_KV_HEADS
        sums_R = sum_of_pairs(low_RP * low_RP, HALF) + sum_of_pairs(high_RP * high_RP, HALF)
        scale_R1 = (1.0 / tl.sqrt(sums_R / (2 * HALF) + EPS))[:, None]
        places_P = tl.arange(0, HALF)
        low_RP = tl.where(is_normed, low_RP * scale_R1 * tl.load(weight + places_P)[None, :], low_RP)
        high_RP = tl.where(is_normed, high_RP * scale_R1 * tl.load(weight + HALF + places_P)[None, :], high_RP)
    return low_RP, high_RP


@triton.jit
def turn_head(low_RP, high_RP, turns, positions, rows_R, is_turned_R, HALF: tl.constexpr):
    """The head turned by its rows' angles, which both halves share; by none where a row or a head is not turned."""
    positions_R = tl.load(positions + rows_R, mask=is_turned_R, other=0)
    places_RP = turns + positions_R[:, None] * (4 * HALF) + HALF + tl.arange(0, HALF)[None, :]
    cos_RP = tl.load(places_RP, mask=is_turned_R[:, None], other=1.0)
    sin_RP = tl.load(places_RP + 2 * HALF, mask=is_turned_R[:, None], other=0.0)
    return low_RP * cos_RP - high_RP * sin_RP, high_RP * cos_RP + low_RP * sin_RP
