"""A mixture of experts: rows are grouped by the experts that they chose, whose weights are read once for all of them.

A pair is a row and one of its experts. Pairs lie in the order of experts, so that those of one lie together; a program
of the products takes some outputs of one expert, for all its pairs. The weights of all experts are one weight, whose
outputs are those of the first expert, then of the second, and so on. Spare rows choose no expert.

Legend: T rows, E experts, K experts of a row, H hidden size, I intermediate size; in kernels R pairs of a tile
(ROW_TILE), O outputs of a program (block_out), P pairs of gate and up.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.language import ROW_TILE, ROWS, await_inputs, launch_options
from forerun.backends.gpu.passes.gates import gated_pairs
from forerun.backends.gpu.passes.linear_buffers import InputNorm, NextNorm
from forerun.backends.gpu.passes.matmul import matmul
from forerun.backends.gpu.passes.packed_linear import DeviceLinear
from forerun.core.model_spec import Gate, ModelSpec

CHUNK = tl.constexpr(256)  # Pairs that a program looks at together.


class ExpertPairs(NamedTuple):
    """The pairs of a pass and what is computed for them; all layers share one.

    Args:
        chosen: int32 [T * K], the experts of each row, best first; E: none.
        shares: float32 [T * K], the softmax of their scores.
        bounds: int32 [2 E], the first place of an expert's pairs and the one after the last.
        order: int32 [T * K], the pair at each place.
        places: int32 [T * K], the place of each pair.
        inputs: [T * K, H] in the compute dtype, the normalised rows in the order of places.
        gated: [T * K, I] in the compute dtype.
        products: float32 [T * K, H].
    """

    chosen: Tensor
    shares: Tensor
    bounds: Tensor
    order: Tensor
    places: Tensor
    inputs: Tensor
    gated: Tensor
    products: Tensor

    @classmethod
    def for_model(cls, spec: ModelSpec, *, max_rows: int, dtype: torch.dtype, device: str) -> "ExpertPairs":
        """Room for the pairs of passes of at most `max_rows` rows."""
        count = max_rows * spec.num_chosen_experts
        chosen, order, places = (torch.zeros(count, dtype=torch.int32, device=device) for _ in range(3))
        return cls(
            chosen=chosen,
            shares=torch.zeros(count, device=device),
            bounds=torch.zeros(2 * spec.num_experts, dtype=torch.int32, device=device),
            order=order,
            places=places,
            inputs=torch.zeros(count, spec.hidden_size, dtype=dtype, device=device),
            gated=torch.zeros(count, spec.intermediate_size, dtype=dtype, device=device),
            products=torch.zeros(count, spec.hidden_size, device=device),
        )


def choose_experts(
    scores: Tensor, lengths_T: Tensor, pairs: ExpertPairs, *, num_rows: int, num_chosen: int, overlaps: bool
) -> None:
    """Choose the experts of each row by the router's scores, float32 [any, E], and put the pairs in order.

    Args:
        lengths_T: of a `RowTable`; rows that see nothing are spare.
    """
    num_experts = scores.shape[1]
    choose_kernel[(num_rows,)](
        scores, lengths_T, pairs.chosen, pairs.shares,
        NUM_EXPERTS=num_experts, NUM_CHOSEN=num_chosen, BLOCK=triton.next_power_of_2(num_experts), OVERLAPS=overlaps,
        **launch_options(num_warps=1, overlaps=overlaps),
    )  # fmt: skip
    order_kernel[(num_experts,)](
        pairs.chosen, pairs.bounds, pairs.order, pairs.places, num_rows * num_chosen,
        OVERLAPS=overlaps, **launch_options(num_warps=1, overlaps=overlaps),
    )  # fmt: skip


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
    for kernel, packed, inputs, outputs in (
        (expert_gate_kernel, gate_up, pairs.inputs, pairs.gated), (expert_out_kernel, out, pairs.gated, pairs.products)
    ):  # fmt: skip
        assert packed.tiles.num_splits == 1, "a program adds up all inputs"
        num_tiles = triton.cdiv(packed.num_out // num_experts, packed.tiles.block_out)
        kernel[(num_tiles, num_experts)](
            inputs, packed.weight, pairs.bounds, outputs,
            GATE=gate, NUM_EXPERTS=num_experts, **packed.options(ROW_TILE, overlaps),
        )  # fmt: skip


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
def choose_kernel(
    scores, lengths, chosen, shares,
    NUM_EXPERTS: tl.constexpr, NUM_CHOSEN: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """chosen[t] = the experts of the K highest scores[t], the highest first and of equal ones the first; shares[t] =
    the softmax of their scores.

    scores [T, E] float32, lengths [T], chosen and shares [T, K]. A program does one row.
    """
    PLACES: tl.constexpr = triton.next_power_of_2(NUM_CHOSEN)
    await_inputs(OVERLAPS)
    row, experts_E, places_K = tl.program_id(0), tl.arange(0, BLOCK), tl.arange(0, PLACES)
    scores_E = tl.load(scores + row * NUM_EXPERTS + experts_E, mask=experts_E < NUM_EXPERTS, other=float("-inf"))
    highest, total = tl.max(scores_E, axis=0), 0.0
    chosen_K, shares_K = tl.full((PLACES,), NUM_EXPERTS, tl.int32), tl.zeros((PLACES,), tl.float32)
    for place in tl.static_range(NUM_CHOSEN):
        best = tl.max(scores_E, axis=0)
        expert = tl.min(tl.where(scores_E == best, experts_E, NUM_EXPERTS), axis=0)
        share = tl.exp(best - highest)
        total += share
        chosen_K = tl.where(places_K == place, expert, chosen_K)
        shares_K = tl.where(places_K == place, share, shares_K)
        scores_E = tl.where(experts_E == expert, float("-inf"), scores_E)
    is_spare = tl.load(lengths + row) == 0
    places_K += row * NUM_CHOSEN
    is_place_K = tl.arange(0, PLACES) < NUM_CHOSEN
    tl.store(chosen + places_K, tl.where(is_spare, NUM_EXPERTS, chosen_K), mask=is_place_K)
    tl.store(shares + places_K, shares_K / total, mask=is_place_K)


@triton.jit(do_not_specialize=["num_pairs"])
def order_kernel(chosen, bounds, order, places, num_pairs, OVERLAPS: tl.constexpr):
    """bounds[e] = where the pairs of expert e begin and end if pairs are ordered by expert, then by number; order[p] =
    the pair at place p, and places the inverse. A program does one expert.
    """
    await_inputs(OVERLAPS)
    expert = tl.program_id(0)
    place = 0
    for first in range(0, num_pairs, CHUNK):
        pairs_C = first + tl.arange(0, CHUNK)
        found_C = tl.load(chosen + pairs_C, mask=pairs_C < num_pairs, other=expert)
        place += tl.sum((found_C < expert).to(tl.int32), axis=0)
    tl.store(bounds + 2 * expert, place)
    for first in range(0, num_pairs, CHUNK):
        pairs_C = first + tl.arange(0, CHUNK)
        found_C = tl.load(chosen + pairs_C, mask=pairs_C < num_pairs, other=-1)
        is_own_C = (found_C == expert).to(tl.int32)
        places_C = place + tl.cumsum(is_own_C, axis=0) - 1
        tl.store(order + places_C, pairs_C, mask=is_own_C > 0)
        tl.store(places + pairs_C, places_C, mask=is_own_C > 0)
        place += tl.sum(is_own_C, axis=0)
    tl.store(bounds + 2 * expert + 1, place)


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
    place, features_H = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
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
    expert, outs_O = tl.program_id(1), tl.arange(0, SHAPE.block_out)  # Gate, up, gate, up, ...
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
    inputs, weight, bounds, products, GATE: tl.constexpr, NUM_EXPERTS: tl.constexpr, SHAPE: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """products[p] = W_e inputs[p] + bias_e for the pairs of expert e.

    inputs [any, I], W [E * H, I] packed, bias [E * H] or None, products [any, H] float32. Programs are (tile of
    outputs, expert).
    """
    NUM_BLOCKS: tl.constexpr = (SHAPE.num_in + SHAPE.block_in - 1) // SHAPE.block_in
    NUM_OUT: tl.constexpr = SHAPE.num_out // NUM_EXPERTS
    expert, places_O = tl.program_id(1), tl.program_id(0) * SHAPE.block_out + tl.arange(0, SHAPE.block_out)
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
    row, features_H = tl.program_id(0), tl.arange(0, BLOCK)
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
