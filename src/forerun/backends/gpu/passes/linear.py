"""Linear layers with what comes right after them, each one kernel.

Legend: R rows of a tile (ROW_TILE), O outputs of a tile (BLOCK_OUT).
"""

import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.language import ROW_TILE, await_inputs, launch_options
from forerun.backends.gpu.passes.finish import finished_sums, row_scales, sum_of_pairs
from forerun.backends.gpu.passes.launching import (
    ROWS_PER_PROGRAM,
    NextNorm,
    NormFold,
    Workspace,
    grid_of,
    norm_arguments,
    num_tiles,
    shape_constants,
)
from forerun.backends.gpu.passes.weights import PackedLinear

__all__ = ["NextNorm", "NormFold", "Workspace", "linear", "linear_add", "linear_silu", "num_tiles", "row_scales"]

ROWS = tl.constexpr(ROW_TILE)
ROWS_OF_PROGRAM = tl.constexpr(ROWS_PER_PROGRAM)


def linear(
    h: Tensor, packed: PackedLinear, y: Tensor, *, num_rows: int, first_row: int, fold: NormFold | None,
    workspace: Workspace, overlaps: bool,
) -> None:  # fmt: skip
    """y = W h + bias in float32: rows first_row to num_rows of h to the first rows of y [any, O]."""
    rows = num_rows - first_row
    _linear[grid_of(packed, rows)](
        h, packed.values, packed.scales, packed.bias, workspace.partials, workspace.counters, y, first_row, num_rows,
        **norm_arguments(fold), **shape_constants(packed, rows), OVERLAPS=overlaps, **options_of(packed, overlaps),
    )  # fmt: skip


def linear_silu(
    h: Tensor, packed: PackedLinear, gated: Tensor, *, num_rows: int, fold: NormFold | None, workspace: Workspace,
    overlaps: bool,
) -> None:  # fmt: skip
    """gated = silu(gate) * up in the dtype of `gated` [any, O / 2], gate and up being the halves of W h + bias."""
    assert packed.paired, "gates and ups must be in the same program"
    _linear_silu[grid_of(packed, num_rows)](
        h, packed.values, packed.scales, packed.bias, workspace.partials, workspace.counters, gated, num_rows,
        **norm_arguments(fold), **shape_constants(packed, num_rows), OVERLAPS=overlaps, **options_of(packed, overlaps),
    )  # fmt: skip


def linear_add(
    inputs: Tensor, packed: PackedLinear, x: Tensor, *, num_rows: int, next_norm: NextNorm, gates: Tensor | None,
    sublayer: int, num_sublayers: int, workspace: Workspace, overlaps: bool,
) -> None:  # fmt: skip
    """x += W inputs + bias in float32, and what the next norm needs of the new x.

    Args:
        gates: int32 [rows * num_sublayers] as in a `RowTable`: rows with 1 at `sublayer` keep their x; or None.
    """
    _linear_add[grid_of(packed, num_rows)](
        inputs, packed.values, packed.scales, packed.bias, workspace.partials, workspace.counters, x, num_rows,
        gates, sublayer, num_sublayers,
        next_norm.weight, next_norm.h, next_norm.squares, next_norm.squares.stride(0), next_norm.scale,
        **shape_constants(packed, num_rows), OVERLAPS=overlaps, **options_of(packed, overlaps),
    )  # fmt: skip


def options_of(packed: PackedLinear, overlaps: bool) -> dict[str, object]:
    return launch_options(num_warps=packed.tiles.num_warps, num_stages=packed.tiles.num_stages, overlaps=overlaps)


@triton.jit
def whole_sums(sums_RO, bias, outs_O, squares, first_row, end_row, row_stride, NUM_PARTS, SIZE, EPS, SCALE):
    """With the input's norm made up for, and the bias."""
    if NUM_PARTS > 0:
        sums_RO *= row_scales(squares, first_row, end_row, row_stride, NUM_PARTS, SIZE, EPS, SCALE)[:, None]
    if bias is not None:
        sums_RO += tl.load(bias + outs_O)[None, :]
    return sums_RO


@triton.jit(do_not_specialize=["first_row", "end_row"])
def _linear(
    h, values, scales, bias, partials, counters, y, first_row, end_row, squares, row_stride,
    NUM_PARTS: tl.constexpr, SIZE: tl.constexpr, EPS: tl.constexpr, SCALE: tl.constexpr,
    FORMAT: tl.constexpr, NUM_IN: tl.constexpr, NUM_OUT: tl.constexpr, GROUP_SIZE: tl.constexpr,
    BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr, NUM_SPLITS: tl.constexpr, IS_WIDE: tl.constexpr,
    NUM_TILES: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    first = first_row + tl.program_id(0) * ROWS_OF_PROGRAM
    places_O = tl.program_id(1) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    outs_O = tl.minimum(places_O, NUM_OUT - 1)
    await_inputs(OVERLAPS)
    sums_0, sums_1, is_finished = finished_sums(
        h, values, scales, partials, counters, tl.program_id(1), tl.program_id(2), outs_O, first, end_row,
        FORMAT, NUM_IN, NUM_OUT, GROUP_SIZE, BLOCK_OUT, BLOCK_IN, NUM_SPLITS, IS_WIDE, NUM_TILES,
    )  # fmt: skip
    if is_finished:
        for tile in tl.static_range(NUM_TILES):
            sums_RO = sums_0 if tile == 0 else sums_1
            start = first + tile * ROWS
            sums_RO = whole_sums(
                sums_RO, bias, outs_O, squares, start, end_row, row_stride, NUM_PARTS, SIZE, EPS, SCALE
            )
            rows_R = start + tl.arange(0, ROWS)
            y_RO = y + (rows_R - first_row).to(tl.int64)[:, None] * NUM_OUT + places_O[None, :]
            tl.store(y_RO, sums_RO, mask=(rows_R < end_row)[:, None] & (places_O < NUM_OUT)[None, :])


@triton.jit(do_not_specialize=["end_row"])
def _linear_silu(
    h, values, scales, bias, partials, counters, gated, end_row, squares, row_stride,
    NUM_PARTS: tl.constexpr, SIZE: tl.constexpr, EPS: tl.constexpr, SCALE: tl.constexpr,
    FORMAT: tl.constexpr, NUM_IN: tl.constexpr, NUM_OUT: tl.constexpr, GROUP_SIZE: tl.constexpr,
    BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr, NUM_SPLITS: tl.constexpr, IS_WIDE: tl.constexpr,
    NUM_TILES: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    NUM_GATES: tl.constexpr = NUM_OUT // 2
    PAIRS: tl.constexpr = BLOCK_OUT // 2
    first = tl.program_id(0) * ROWS_OF_PROGRAM
    outs_O = tl.arange(0, BLOCK_OUT)  # gate, up, gate, up, ...: a pair stays in one thread
    outs_O = tl.minimum(tl.program_id(1) * PAIRS + outs_O // 2, NUM_GATES - 1) + outs_O % 2 * NUM_GATES
    await_inputs(OVERLAPS)
    sums_0, sums_1, is_finished = finished_sums(
        h, values, scales, partials, counters, tl.program_id(1), tl.program_id(2), outs_O, first, end_row,
        FORMAT, NUM_IN, NUM_OUT, GROUP_SIZE, BLOCK_OUT, BLOCK_IN, NUM_SPLITS, IS_WIDE, NUM_TILES,
    )  # fmt: skip
    if is_finished:
        for tile in tl.static_range(NUM_TILES):
            sums_RO = sums_0 if tile == 0 else sums_1
            start = first + tile * ROWS
            sums_RO = whole_sums(
                sums_RO, bias, outs_O, squares, start, end_row, row_stride, NUM_PARTS, SIZE, EPS, SCALE
            )
            gates_RP, ups_RP = tl.split(tl.reshape(sums_RO, (ROWS, PAIRS, 2)))
            decays_RP = tl.exp(-tl.abs(gates_RP))  # never overflows
            shares_RP = tl.where(gates_RP >= 0.0, 1.0, decays_RP) / (1.0 + decays_RP)
            gated_RP = gates_RP * shares_RP * ups_RP
            rows_R, places_P = start + tl.arange(0, ROWS), tl.program_id(1) * PAIRS + tl.arange(0, PAIRS)
            is_there_RP = (rows_R < end_row)[:, None] & (places_P < NUM_GATES)[None, :]
            places_RP = gated + rows_R[:, None] * NUM_GATES + places_P[None, :]
            tl.store(places_RP, gated_RP.to(gated.dtype.element_ty), mask=is_there_RP)


@triton.jit(do_not_specialize=["end_row", "sublayer", "num_sublayers"])
def _linear_add(
    h, values, scales, bias, partials, counters, x, end_row, gates, sublayer, num_sublayers,
    next_weight, next_h, next_squares, row_stride, NEXT_SCALE: tl.constexpr,
    FORMAT: tl.constexpr, NUM_IN: tl.constexpr, NUM_OUT: tl.constexpr, GROUP_SIZE: tl.constexpr,
    BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr, NUM_SPLITS: tl.constexpr, IS_WIDE: tl.constexpr,
    NUM_TILES: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * ROWS_OF_PROGRAM
    places_O = tl.program_id(1) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    outs_O = tl.minimum(places_O, NUM_OUT - 1)
    await_inputs(OVERLAPS)
    sums_0, sums_1, is_finished = finished_sums(
        h, values, scales, partials, counters, tl.program_id(1), tl.program_id(2), outs_O, first, end_row,
        FORMAT, NUM_IN, NUM_OUT, GROUP_SIZE, BLOCK_OUT, BLOCK_IN, NUM_SPLITS, IS_WIDE, NUM_TILES,
    )  # fmt: skip
    if is_finished:
        for tile in tl.static_range(NUM_TILES):
            after_RO = sums_0 if tile == 0 else sums_1
            if bias is not None:
                after_RO += tl.load(bias + outs_O)[None, :]
            rows_R = first + tile * ROWS + tl.arange(0, ROWS)
            is_there_RO = (rows_R < end_row)[:, None] & (places_O < NUM_OUT)[None, :]
            places_RO = rows_R[:, None] * NUM_OUT + places_O[None, :]
            before_RO = tl.load(x + places_RO, mask=is_there_RO, other=0.0)
            after_RO = tl.where(is_there_RO, before_RO + after_RO, 0.0)
            if gates is not None:
                is_left_out_R = tl.load(gates + rows_R * num_sublayers + sublayer, mask=rows_R < end_row, other=1) != 0
                after_RO = tl.where(is_left_out_R[:, None], before_RO, after_RO)
            tl.store(x + places_RO, after_RO, mask=is_there_RO)
            weight_O = tl.load(next_weight + places_O, mask=places_O < NUM_OUT, other=0.0)
            next_RO = after_RO * weight_O[None, :] * NEXT_SCALE
            tl.store(next_h + places_RO, next_RO.to(next_h.dtype.element_ty), mask=is_there_RO)
            squares_R = sum_of_pairs(after_RO * after_RO, BLOCK_OUT)
            tl.store(next_squares + tl.program_id(1) * row_stride + rows_R, squares_R, mask=rows_R < end_row)
