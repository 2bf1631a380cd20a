"""The products of a mixture of experts: an expert's weights are read once for all rows that chose it.

A program takes some outputs of one expert, for all its pairs, which lie together (`expert_pairs`). The weights of all
experts are one weight, whose outputs are those of the first expert, then of the second, and so on.

Legend: T rows, E experts, K experts of a row, H hidden size, I intermediate size; in kernels R pairs of a tile
(ROW_TILE), O outputs of a program (block_out), P pairs of gate and up.
"""

import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.kernel_parts import ROW_TILE, ROWS, await_inputs, launch_options
from forerun.backends.gpu.passes.expert_pairs import ExpertPairs
from forerun.backends.gpu.passes.gates import gated_pairs
from forerun.backends.gpu.passes.linear_buffers import InputNorm, NextNorm
from forerun.backends.gpu.passes.matmul import matmul
from forerun.backends.gpu.passes.packed_linear import DeviceLinear
from forerun.core.model_spec import Gate


def multiply_experts(
    h: Tensor, gate_up: DeviceLinear, out: DeviceLinear, pairs: ExpertPairs, *, norm: InputNorm, gate: Gate,
    num_rows: int, num_experts: int, overlaps: bool,
) -> None:  # fmt: skip
    """products = W_out (act(gate) * up) + bias of each pair, where gate and up are the halves of W norm(h) + bias.

    Args:
        gate_up, out: all experts' weights, see `stack`.
    """
    assert gate_up.paired, "gates and ups must be in the same program"
    num_pairs = num_rows * len(pairs.chosen) // len(h)
    size = h.shape[1]
    gather_kernel[(num_pairs,)](
        h, pairs.order, pairs.bounds, pairs.inputs, norm.sums,
        NUM_EXPERTS=num_experts, NUM_CHOSEN=len(pairs.chosen) // len(h), NORM=norm.shape, SIZE=size,
        BLOCK=triton.next_power_of_2(size), OVERLAPS=overlaps, **launch_options(num_warps=4, overlaps=overlaps),
    )  # fmt: skip
    expert_gate_kernel[_grid_of(gate_up, num_experts)](
        pairs.inputs, gate_up.weight, pairs.bounds, pairs.gated,
        GATE=gate, NUM_EXPERTS=num_experts, **gate_up.options(ROW_TILE, overlaps),
    )  # fmt: skip
    expert_out_kernel[_grid_of(out, num_experts)](
        pairs.gated, out.weight, pairs.bounds, pairs.products,
        NUM_EXPERTS=num_experts, **out.options(ROW_TILE, overlaps),
    )  # fmt: skip


def _grid_of(packed: DeviceLinear, num_experts: int) -> tuple[int, int]:
    """Tiles of an expert's outputs, and experts."""
    assert packed.tiles.num_splits == 1, "a program adds up all inputs"
    return triton.cdiv(packed.num_out // num_experts, packed.tiles.block_out), num_experts


def add_experts(
    pairs: ExpertPairs, x: Tensor, next_norm: NextNorm, *, num_rows: int, num_experts: int, num_chosen: int,
    row_skips: Tensor | None, sublayer: int, num_sublayers: int, overlaps: bool,
) -> None:  # fmt: skip
    """x += the products of each row's experts times their shares; a row's sum of squares has one part.

    Args:
        row_skips: as for `linear_add`.
    """
    size = x.shape[1]
    add_experts_kernel[(num_rows,)](
        pairs.products, pairs.chosen, pairs.shares, pairs.places, x, row_skips, sublayer, num_sublayers,
        next_norm.tensors,
        NUM_EXPERTS=num_experts, NUM_CHOSEN=num_chosen, SIZE=size, BLOCK=triton.next_power_of_2(size),
        OVERLAPS=overlaps, **launch_options(num_warps=8 if size > 1024 else 4, overlaps=overlaps),
    )  # fmt: skip


@triton.jit
def gather_kernel(
    h, order, bounds, inputs, norm, NUM_EXPERTS: tl.constexpr, NUM_CHOSEN: tl.constexpr, NORM: tl.constexpr,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """inputs[p] = row_scales[t] * h[t] as in `linear_kernel`, for the row t of the pair at place p.

    h and inputs [any, H]. A program does one place; SIZE is H, BLOCK the next power of two.
    """
    await_inputs(OVERLAPS)
    squares, row_stride, norm_scale = norm
    place = tl.program_id(0).to(tl.int64)
    features_H = tl.arange(0, BLOCK)
    if place < tl.load(bounds + 2 * NUM_EXPERTS - 1):
        row = tl.load(order + place).to(tl.int64) // NUM_CHOSEN
        parts_P = tl.arange(0, triton.next_power_of_2(NORM.num_parts))
        found_P = tl.load(squares + parts_P * row_stride + row, mask=parts_P < NORM.num_parts, other=0.0)
        factor = 1.0 / tl.sqrt(tl.sum(found_P, axis=0) / NORM.size + NORM.eps) / norm_scale
        h_H = tl.load(h + row * SIZE + features_H, mask=features_H < SIZE, other=0.0)
        scaled_H = (h_H.to(tl.float32) * factor).to(inputs.dtype.element_ty)
        tl.store(inputs + place * SIZE + features_H, scaled_H, mask=features_H < SIZE)


@triton.jit
def expert_gate_kernel(
    inputs, weight, bounds, gated, GATE: tl.constexpr, NUM_EXPERTS: tl.constexpr, SHAPE: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """gated[p] = act(y[p]) * y[p, I:] as in `gated_pairs`; y[p] = W_e inputs[p] + bias_e for the pairs of expert e.

    inputs [any, H], W [E * 2 I, H] packed, bias [E * 2 I] or None, gated [any, I]. Programs are (tile of outputs,
    expert).
    """
    NUM_BLOCKS: tl.constexpr = (SHAPE.num_in + SHAPE.block_in - 1) // SHAPE.block_in
    NUM_GATES: tl.constexpr = SHAPE.num_out // NUM_EXPERTS // 2
    PAIRS: tl.constexpr = SHAPE.block_out // 2
    expert = tl.program_id(1)  # Gate, up, gate, up, ...
    outs_O = tl.arange(0, SHAPE.block_out)
    pairs_O = tl.minimum(tl.program_id(0) * PAIRS + outs_O // 2, NUM_GATES - 1)
    outs_O = expert * (2 * NUM_GATES) + pairs_O + outs_O % 2 * NUM_GATES
    places_P = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    await_inputs(OVERLAPS)
    end = tl.load(bounds + 2 * expert + 1)
    for first in range(tl.load(bounds + 2 * expert), end, ROWS):
        sums = matmul(inputs, weight, outs_O, first, end, 0, NUM_BLOCKS, SHAPE)
        sums_RO = sums[0]
        if weight.bias is not None:
            sums_RO += tl.load(weight.bias + outs_O)[None, :]
        gates_RP, ups_RP = tl.split(tl.reshape(sums_RO, (ROWS, PAIRS, 2)))
        gated_RP = gated_pairs(gates_RP, ups_RP, GATE)
        rows_R = first + tl.arange(0, ROWS)
        is_there_RP = (rows_R < end)[:, None] & (places_P < NUM_GATES)[None, :]
        places_RP = gated + rows_R[:, None] * NUM_GATES + places_P[None, :]
        tl.store(places_RP, gated_RP.to(gated.dtype.element_ty), mask=is_there_RP)


@triton.jit
def expert_out_kernel(
    inputs, weight, bounds, products, NUM_EXPERTS: tl.constexpr, SHAPE: tl.constexpr, OVERLAPS: tl.constexpr
):
    """products[p] = W_e inputs[p] + bias_e for the pairs of expert e.

    inputs [any, I], W [E * H, I] packed, bias [E * H] or None, products [any, H] float32. Programs are (tile of
    outputs, expert).
    """
    NUM_BLOCKS: tl.constexpr = (SHAPE.num_in + SHAPE.block_in - 1) // SHAPE.block_in
    NUM_OUT: tl.constexpr = SHAPE.num_out // NUM_EXPERTS
    expert = tl.program_id(1)
    places_O = tl.program_id(0) * SHAPE.block_out + tl.arange(0, SHAPE.block_out)
    outs_O = expert * NUM_OUT + tl.minimum(places_O, NUM_OUT - 1)
    await_inputs(OVERLAPS)
    end = tl.load(bounds + 2 * expert + 1)
    for first in range(tl.load(bounds + 2 * expert), end, ROWS):
        sums = matmul(inputs, weight, outs_O, first, end, 0, NUM_BLOCKS, SHAPE)
        sums_RO = sums[0]
        if weight.bias is not None:
            sums_RO += tl.load(weight.bias + outs_O)[None, :]
        rows_R = first + tl.arange(0, ROWS)
        is_there_RO = (rows_R < end)[:, None] & (places_O < NUM_OUT)[None, :]
        tl.store(products + rows_R[:, None] * NUM_OUT + places_O[None, :], sums_RO, mask=is_there_RO)


@triton.jit(do_not_specialize=["sublayer", "num_sublayers"])
def add_experts_kernel(
    products, chosen, shares, places, x, row_skips, sublayer, num_sublayers, next_norm,
    NUM_EXPERTS: tl.constexpr, NUM_CHOSEN: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """x[t] += sum over k of shares[t, k] * products[places[t, k]] unless row_skips[t, sublayer]; next_h and
    next_squares follow from the new x as in `embed_kernel`.

    A program computes one row t; SIZE is H, BLOCK the next power of two.
    """
    next_weight, next_h, next_squares, _row_stride, next_scale = next_norm
    row = tl.program_id(0)
    features_H = tl.arange(0, BLOCK)
    is_feature_H = features_H < SIZE
    next_weight_H = tl.load(next_weight + features_H, mask=is_feature_H, other=0.0)
    await_inputs(OVERLAPS)
    branch_H = tl.zeros((BLOCK,), tl.float32)
    for number in tl.static_range(NUM_CHOSEN):
        pair = row * NUM_CHOSEN + number
        is_there_H = features_H < tl.where(tl.load(chosen + pair) < NUM_EXPERTS, SIZE, 0)
        places_H = tl.load(places + pair).to(tl.int64) * SIZE + features_H
        branch_H += tl.load(shares + pair) * tl.load(products + places_H, mask=is_there_H, other=0.0)
    places_H = row.to(tl.int64) * SIZE + features_H
    before_H = tl.load(x + places_H, mask=is_feature_H, other=0.0)
    x_H = before_H + branch_H
    if row_skips is not None:
        x_H = tl.where(tl.load(row_skips + row * num_sublayers + sublayer) != 0, before_H, x_H)
    tl.store(x + places_H, x_H, mask=is_feature_H)
    tl.store(next_h + places_H, (x_H * next_weight_H * next_scale).to(next_h.dtype.element_ty), mask=is_feature_H)
    tl.store(next_squares + row, tl.sum(x_H * x_H))
