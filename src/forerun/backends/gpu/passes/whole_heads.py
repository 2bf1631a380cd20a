"""Normalises queries over all heads and keys over all heads (OLMo 2), rotates them, and writes to the cache.

A norm over all heads needs the products of several programs, so this is a kernel of its own behind the product.

Legend: T rows, H query heads and K key/value heads, D head size, S slots; in kernels N heads (a power of two), P
numbers of half a head.
"""

import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.kernel_parts import await_inputs, launch_options
from forerun.backends.gpu.passes.qkv import HeadsShape
from forerun.backends.gpu.row_table import RowTable
from forerun.core.model_spec import ModelSpec


def whole_heads(
    products: Tensor, q: Tensor, keys_SKD: Tensor, values_SKD: Tensor, cos_sin_P2D: Tensor, rows: RowTable, *,
    num_rows: int, spec: ModelSpec, norms: tuple[Tensor, Tensor], query_scales_P: Tensor | None, overlaps: bool,
) -> None:  # fmt: skip
    """Write queries, keys and values as `qkv` does, from their products.

    Args:
        products: float32 [any, (H + 2 K) D].
        norms: the weights, float32 [H D] and [K D], of the RMS norms of all queries and of all keys.
    """
    assert keys_SKD.stride() == values_SKD.stride(), "keys and values lie alike"
    assert keys_SKD.stride()[1:] == (spec.head_dim, 1), "the heads of a slot lie together"
    whole_heads_kernel[(num_rows, 3)](
        products, norms, (q, keys_SKD, values_SKD, keys_SKD.stride(0)),
        (cos_sin_P2D, rows.positions, rows.slots, query_scales_P),
        HEADS=HeadsShape(spec.num_heads, spec.num_kv_heads, spec.norm_eps), HEAD_DIM=spec.head_dim, OVERLAPS=overlaps,
        **launch_options(num_warps=8, overlaps=overlaps),
    )  # fmt: skip


@triton.jit
def whole_heads_kernel(
    products, norms, outputs, rows, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, OVERLAPS: tl.constexpr
):
    """q[t] = rope(norm(y[t, :H]), positions[t]) * query_scales[positions[t]]; keys[slots[t]] = the same of the next K
    heads, unscaled; values[slots[t]] = the last K heads; norm(y) = y / sqrt(mean over all heads of y^2 + eps) * weight.

    products y float32 [T, H + 2 K, D], norms (query weight [H, D], key weight [K, D]), outputs and rows as in
    `qkv_kernel`. A program computes one row's queries, keys or values.
    """
    q, keys, values, slot_stride = outputs
    cos_sin, positions, slots, query_scales = rows
    NUM_HEADS: tl.constexpr = HEADS.num_heads
    NUM_KV_HEADS: tl.constexpr = HEADS.num_kv_heads
    await_inputs(OVERLAPS)
    row = tl.program_id(0)
    part = tl.program_id(1)
    position = tl.load(positions + row)
    slot = tl.load(slots + row).to(tl.int64) * slot_stride
    products += row.to(tl.int64) * ((NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM)
    if part == 0:
        scale = 1.0 if query_scales is None else tl.load(query_scales + position)
        angles = cos_sin + position * (2 * HEAD_DIM)
        norm_and_rotate(products, norms[0], q + row * (NUM_HEADS * HEAD_DIM), angles, scale, NUM_HEADS, HEAD_DIM, HEADS)
    elif part == 1:
        products += NUM_HEADS * HEAD_DIM
        angles = cos_sin + position * (2 * HEAD_DIM)
        norm_and_rotate(products, norms[1], keys + slot, angles, 1.0, NUM_KV_HEADS, HEAD_DIM, HEADS)
    else:
        BLOCK: tl.constexpr = triton.next_power_of_2(NUM_KV_HEADS * HEAD_DIM)
        places = tl.arange(0, BLOCK)
        is_there = places < NUM_KV_HEADS * HEAD_DIM
        found = tl.load(products + (NUM_HEADS + NUM_KV_HEADS) * HEAD_DIM + places, mask=is_there)
        tl.store(values + slot + places, found.to(values.dtype.element_ty), mask=is_there)


@triton.jit
def norm_and_rotate(
    products, weight, outputs, angles, scale, NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HEADS: tl.constexpr
):
    """Normalise the heads [NUM_HEADS, D] of a row over all of them, rotate them by `angles` [2, D], and store them."""
    HALF: tl.constexpr = HEAD_DIM // 2
    heads_N = tl.arange(0, triton.next_power_of_2(NUM_HEADS))
    places_P = tl.arange(0, HALF)
    places_NP = heads_N[:, None] * HEAD_DIM + places_P[None, :]
    is_head_N1 = (heads_N < NUM_HEADS)[:, None]
    low_NP = tl.load(products + places_NP, mask=is_head_N1, other=0.0)
    high_NP = tl.load(products + places_NP + HALF, mask=is_head_N1, other=0.0)
    mean = (tl.sum(low_NP * low_NP) + tl.sum(high_NP * high_NP)) / (NUM_HEADS * HEAD_DIM)
    factor = 1.0 / tl.sqrt(mean + HEADS.norm_eps)
    low_NP = low_NP * factor * tl.load(weight + places_NP, mask=is_head_N1, other=0.0)
    high_NP = high_NP * factor * tl.load(weight + places_NP + HALF, mask=is_head_N1, other=0.0)
    cos_1P = tl.load(angles + HALF + places_P)[None, :]
    sin_1P = tl.load(angles + HEAD_DIM + HALF + places_P)[None, :]
    kind = outputs.dtype.element_ty
    tl.store(outputs + places_NP, ((low_NP * cos_1P - high_NP * sin_1P) * scale).to(kind), mask=is_head_N1)
    tl.store(outputs + places_NP + HALF, ((high_NP * cos_1P + low_NP * sin_1P) * scale).to(kind), mask=is_head_N1)
