"""Linear layers, each fused with the next operation into one kernel.

Programs are (block of rows, tile of outputs, split of inputs). Sums are float32 throughout.

Legend: T rows, I inputs, O outputs of the weight, S sublayers; in kernels R rows of a tile (ROW_TILE), O outputs of a
tile (block_out), P pairs of gate and up.
"""

import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.kernel_parts import ROWS, await_inputs
from forerun.backends.gpu.passes.epilogue import keep_left_out, load_norm, norm_and_bias, write_residual
from forerun.backends.gpu.passes.exchange import RankExchange, place_in
from forerun.backends.gpu.passes.gates import gated_pairs
from forerun.backends.gpu.passes.linear_buffers import InputNorm, NextNorm, SplitWorkspace
from forerun.backends.gpu.passes.packed_linear import DeviceLinear
from forerun.backends.gpu.passes.split_k import clamped, request_weights, split_k_matmul, whole_sums
from forerun.core.model_spec import Gate


def linear(
    h: Tensor, packed: DeviceLinear, y: Tensor, *, num_rows: int, first_row: int, norm: InputNorm,
    workspace: SplitWorkspace, overlaps: bool,
) -> None:  # fmt: skip
    """y = W norm(h) + bias in float32 for rows first_row to num_rows of h, written to the first rows of y [any, O]."""
    rows = num_rows - first_row
    linear_kernel[packed.grid(rows)](
        h, packed.weight, workspace, y, first_row, num_rows, norm.sums,
        NORM=norm.shape, **packed.options(rows, overlaps),
    )  # fmt: skip


def linear_gate(
    h: Tensor, packed: DeviceLinear, gated: Tensor, *, gate: Gate, num_rows: int, norm: InputNorm,
    workspace: SplitWorkspace, overlaps: bool,
) -> None:  # fmt: skip
    """gated [any, O / 2] = act(gate) * up, where gate and up are the halves of W norm(h) + bias, see `gated_pairs`."""
    assert packed.paired, "gates and ups must be in the same program"
    linear_gate_kernel[packed.grid(num_rows)](
        h, packed.weight, workspace, gated, num_rows, norm.sums,
        GATE=gate, NORM=norm.shape, **packed.options(num_rows, overlaps),
    )  # fmt: skip


def linear_add(
    inputs: Tensor, packed: DeviceLinear, x: Tensor, *, num_rows: int, next_norm: NextNorm, row_skips: Tensor | None,
    sublayer: int, num_sublayers: int, workspace: SplitWorkspace, overlaps: bool,
) -> None:  # fmt: skip
    """x += W inputs + bias in float32; also write the next norm's inputs.

    Args:
        row_skips: int32 [rows * num_sublayers] of a `RowTable`, or None; rows with 1 at `sublayer` keep their x.
    """
    linear_add_kernel[packed.grid(num_rows)](
        inputs, packed.weight, workspace, x, num_rows, row_skips, sublayer, num_sublayers, next_norm.tensors,
        **packed.options(num_rows, overlaps),
    )  # fmt: skip


def linear_partial(
    inputs: Tensor, packed: DeviceLinear, exchange: RankExchange, *, num_rows: int, workspace: SplitWorkspace,
    overlaps: bool,
) -> None:  # fmt: skip
    """Write W inputs + bias, in the dtype of the inputs, to this rank's place of the next exchange: [num_rows, O]."""
    linear_partial_kernel[packed.grid(num_rows)](
        inputs, packed.weight, workspace, exchange.peers, exchange.rank, num_rows,
        MEMORY=exchange.shape, **packed.options(num_rows, overlaps),
    )  # fmt: skip


@triton.jit(do_not_specialize=["first_row", "end_row"])
def linear_kernel(
    h, weight, workspace, y, first_row, end_row, norm,
    SHAPE: tl.constexpr, NORM: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """y[t - first_row, o] = row_scales[t] * (sum over i of h[t, i] W[o, i]) + bias[o].

    h [T, I] in the compute dtype, W [O, I] packed, bias [O] or None, y [any, O] float32; t from first_row to end_row.
    """
    NUM_TILES: tl.constexpr = SHAPE.num_row_tiles
    first = first_row + tl.program_id(0) * (NUM_TILES * ROWS)
    places_O = tl.program_id(1) * SHAPE.block_out + tl.arange(0, SHAPE.block_out)
    outs_O = clamped(places_O, SHAPE)
    request_weights(weight, outs_O, SHAPE, OVERLAPS)
    await_inputs(OVERLAPS)
    loaded = load_norm(norm, first, end_row, NORM, SHAPE)
    sums, is_last = split_k_matmul(h, weight, workspace, outs_O, first, end_row, SHAPE)
    if is_last:
        for tile in tl.static_range(NUM_TILES):
            sums_RO = whole_sums(sums, workspace, tile, SHAPE)
            start = first + tile * ROWS
            sums_RO = norm_and_bias(sums_RO, weight.bias, norm, loaded[tile], outs_O, NORM)
            rows_R = start + tl.arange(0, ROWS)
            y_RO = y + (rows_R - first_row).to(tl.int64)[:, None] * SHAPE.num_out + places_O[None, :]
            tl.store(y_RO, sums_RO, mask=(rows_R < end_row)[:, None] & (places_O < SHAPE.num_out)[None, :])


@triton.jit(do_not_specialize=["end_row"])
def linear_gate_kernel(
    h, weight, workspace, gated, end_row, norm,
    GATE: tl.constexpr, SHAPE: tl.constexpr, NORM: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """gated[t, p] = act(y[t, p]) * y[t, O / 2 + p] as in `gated_pairs`, with y as in `linear_kernel`.

    h [T, I] in the compute dtype, W [O, I] packed, bias [O] or None, gated [T, O / 2] in its own dtype.
    """
    NUM_TILES: tl.constexpr = SHAPE.num_row_tiles
    NUM_GATES: tl.constexpr = SHAPE.num_out // 2
    PAIRS: tl.constexpr = SHAPE.block_out // 2
    first = tl.program_id(0) * (NUM_TILES * ROWS)
    outs_O = tl.arange(0, SHAPE.block_out)  # Gate, up, gate, up, ...: a pair stays in one thread.
    pairs_O = tl.program_id(1) * PAIRS + outs_O // 2
    if NUM_GATES % PAIRS != 0:
        pairs_O = tl.minimum(pairs_O, NUM_GATES - 1)
    outs_O = pairs_O + outs_O % 2 * NUM_GATES
    request_weights(weight, outs_O, SHAPE, OVERLAPS)
    await_inputs(OVERLAPS)
    loaded = load_norm(norm, first, end_row, NORM, SHAPE)
    sums, is_last = split_k_matmul(h, weight, workspace, outs_O, first, end_row, SHAPE)
    if is_last:
        for tile in tl.static_range(NUM_TILES):
            sums_RO = whole_sums(sums, workspace, tile, SHAPE)
            start = first + tile * ROWS
            sums_RO = norm_and_bias(sums_RO, weight.bias, norm, loaded[tile], outs_O, NORM)
            gates_RP, ups_RP = tl.split(tl.reshape(sums_RO, (ROWS, PAIRS, 2)))
            gated_RP = gated_pairs(gates_RP, ups_RP, GATE)
            rows_R = start + tl.arange(0, ROWS)
            places_P = tl.program_id(1) * PAIRS + tl.arange(0, PAIRS)
            is_there_RP = (rows_R < end_row)[:, None] & (places_P < NUM_GATES)[None, :]
            places_RP = gated + rows_R[:, None] * NUM_GATES + places_P[None, :]
            tl.store(places_RP, gated_RP.to(gated.dtype.element_ty), mask=is_there_RP)


@triton.jit(do_not_specialize=["rank", "end_row"])
def linear_partial_kernel(
    h, weight, workspace, peers, rank, end_row, SHAPE: tl.constexpr, MEMORY: tl.constexpr, OVERLAPS: tl.constexpr
):
    """partial[t, o] = (sum over i of h[t, i] W[o, i]) + bias[o].

    h [T, I] and partial [T, O] in the compute dtype, W [O, I] packed, bias [O] or None.
    """
    NUM_TILES: tl.constexpr = SHAPE.num_row_tiles
    first = tl.program_id(0) * (NUM_TILES * ROWS)
    places_O = tl.program_id(1) * SHAPE.block_out + tl.arange(0, SHAPE.block_out)
    outs_O = clamped(places_O, SHAPE)
    request_weights(weight, outs_O, SHAPE, OVERLAPS)
    await_inputs(OVERLAPS)
    sums, is_last = split_k_matmul(h, weight, workspace, outs_O, first, end_row, SHAPE)
    if is_last:
        partial = place_in(tl.load(peers.addresses + rank), tl.load(peers.exchanges) + 1, h, MEMORY)
        for tile in tl.static_range(NUM_TILES):
            sums_RO = whole_sums(sums, workspace, tile, SHAPE)
            if weight.bias is not None:
                sums_RO += tl.load(weight.bias + outs_O)[None, :]
            rows_R = first + tile * ROWS + tl.arange(0, ROWS)
            is_there_RO = (rows_R < end_row)[:, None] & (places_O < SHAPE.num_out)[None, :]
            places_RO = partial + rows_R[:, None] * SHAPE.num_out + places_O[None, :]
            tl.store(places_RO, sums_RO.to(h.dtype.element_ty), mask=is_there_RO)


@triton.jit(do_not_specialize=["end_row", "sublayer", "num_sublayers"])
def linear_add_kernel(
    h, weight, workspace, x, end_row, row_skips, sublayer, num_sublayers, next_norm,
    SHAPE: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """x[t, o] += (sum over i of h[t, i] W[o, i]) + bias[o], unless row_skips[t, sublayer]; then, with the new x,
    next_h[t, o] = x[t, o] * next_weight[o] * next_scale and next_squares[tile, t] = sum over the tile of x[t, o]^2.

    h [T, I] and next_h [T, O] in the compute dtype, W [O, I] packed, bias [O] or None, x [T, O] and next_weight [O]
    float32, next_squares [tiles of outputs, row stride] float32, row_skips int32 [T, S] or None.
    """
    NUM_TILES: tl.constexpr = SHAPE.num_row_tiles
    first = tl.program_id(0) * (NUM_TILES * ROWS)
    places_O = tl.program_id(1) * SHAPE.block_out + tl.arange(0, SHAPE.block_out)
    outs_O = clamped(places_O, SHAPE)
    request_weights(weight, outs_O, SHAPE, OVERLAPS)
    await_inputs(OVERLAPS)
    sums, is_last = split_k_matmul(h, weight, workspace, outs_O, first, end_row, SHAPE)
    if is_last:
        for tile in tl.static_range(NUM_TILES):
            after_RO = whole_sums(sums, workspace, tile, SHAPE)
            if weight.bias is not None:
                after_RO += tl.load(weight.bias + outs_O)[None, :]
            rows_R = first + tile * ROWS + tl.arange(0, ROWS)
            is_there_RO = (rows_R < end_row)[:, None] & (places_O < SHAPE.num_out)[None, :]
            places_RO = rows_R[:, None] * SHAPE.num_out + places_O[None, :]
            before_RO = tl.load(x + places_RO, mask=is_there_RO, other=0.0)
            after_RO = tl.where(is_there_RO, before_RO + after_RO, 0.0)
            after_RO = keep_left_out(after_RO, before_RO, row_skips, rows_R, end_row, sublayer, num_sublayers)
            write_residual(after_RO, x, next_norm, tl.program_id(1), rows_R, places_O, end_row, SHAPE.num_out)
