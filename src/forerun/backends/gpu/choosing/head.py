"""The vocabulary head with its end: the product goes through noise and comparison where it is made, so that a choice
writes no scores at all, and a ranking only totals, for the few tiles in which it looks for its tokens.

Scores have the bits that `linear` gives them: a tile's sums are made by the same code.

Legend: R rows of a tile (ROW_TILE), O outputs of a tile (BLOCK_OUT), which are tokens.
"""

import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.choosing.selection import Choice, Draw, Ranking, noise_arguments, totals_of
from forerun.backends.gpu.choosing.tile_maxima import Leaders, choose_leaders, rank_leaders, store_leaders
from forerun.backends.gpu.language import ROW_TILE, await_inputs
from forerun.backends.gpu.passes.finish import finished_sums
from forerun.backends.gpu.passes.launching import (
    ROWS_PER_PROGRAM,
    NormFold,
    Workspace,
    grid_of,
    norm_arguments,
    num_tiles,
    shape_constants,
)
from forerun.backends.gpu.passes.linear import options_of, whole_sums
from forerun.backends.gpu.passes.weights import PackedLinear

ROWS = tl.constexpr(ROW_TILE)
ROWS_OF_PROGRAM = tl.constexpr(ROWS_PER_PROGRAM)


@triton.jit(do_not_specialize=["first_row", "end_row"])
def head_tiles(
    h, values, scales, bias, partials, counters, temperature, seed_mix, positions, firsts, seconds, sums, totals,
    first_row, end_row, vocab_size, squares, row_stride,
    NUM_PARTS: tl.constexpr, SIZE: tl.constexpr, EPS: tl.constexpr, SCALE: tl.constexpr,
    FORMAT: tl.constexpr, NUM_IN: tl.constexpr, NUM_OUT: tl.constexpr, GROUP_SIZE: tl.constexpr,
    BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr, NUM_SPLITS: tl.constexpr, IS_WIDE: tl.constexpr,
    NUM_TILES: tl.constexpr, NOISY: tl.constexpr, RANKS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """The leaders of one or two tiles of rows in one tile of the vocabulary."""
    first = first_row + tl.program_id(0) * ROWS_OF_PROGRAM
    tokens_O = tl.program_id(1) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    outs_O = tl.minimum(tokens_O, NUM_OUT - 1)
    await_inputs(OVERLAPS)
    sums_0, sums_1, is_finished = finished_sums(
        h, values, scales, partials, counters, tl.program_id(1), tl.program_id(2), outs_O, first, end_row,
        FORMAT, NUM_IN, NUM_OUT, GROUP_SIZE, BLOCK_OUT, BLOCK_IN, NUM_SPLITS, IS_WIDE, NUM_TILES,
    )  # fmt: skip
    if is_finished:
        for row_tile in tl.static_range(NUM_TILES):
            sums_RO = sums_0 if row_tile == 0 else sums_1
            start = first + row_tile * ROWS
            scores_RO = whole_sums(
                sums_RO, bias, outs_O, squares, start, end_row, row_stride, NUM_PARTS, SIZE, EPS, SCALE
            )
            rows_R = start + tl.arange(0, ROWS)
            totals_RO = totals_of(
                scores_RO, tokens_O, rows_R, rows_R < end_row, temperature, seed_mix, positions, NOISY, RANKS
            )
            store_leaders(
                totals_RO, tokens_O, rows_R - first_row, rows_R < end_row, tl.program_id(1), tl.num_programs(1),
                vocab_size, firsts, seconds, sums, totals, RANKS,
            )  # fmt: skip


def choose_tokens(
    h: Tensor, packed: PackedLinear, draw: Draw, choice: Choice, *, num_rows: int, first_row: int,
    fold: NormFold | None, workspace: Workspace, leaders: Leaders, overlaps: bool,
) -> None:  # fmt: skip
    """The best token after each row first_row to num_rows of h, of equal totals the lowest."""
    launch_head_tiles(
        h, packed, draw, num_rows=num_rows, first_row=first_row, vocab_size=packed.num_out, ranks=False, fold=fold,
        workspace=workspace, leaders=leaders, overlaps=overlaps,
    )  # fmt: skip
    choose_leaders(
        leaders, num_rows=num_rows - first_row, num_tiles=num_tiles(packed), out_tokens=choice.tokens,
        out_best=choice.best, out_second=choice.second, overlaps=overlaps,
    )  # fmt: skip


def rank_tokens(
    h: Tensor, packed: PackedLinear, draw: Draw, ranking: Ranking, *, num_children: int, vocab_size: int,
    num_rows: int, first_row: int, fold: NormFold | None, workspace: Workspace, leaders: Leaders, overlaps: bool,
) -> None:  # fmt: skip
    """The likeliest of the first `vocab_size` tokens after each row, and the log-softmax of their totals."""
    assert vocab_size <= packed.num_out, (vocab_size, packed.num_out)
    launch_head_tiles(
        h, packed, draw, num_rows=num_rows, first_row=first_row, vocab_size=vocab_size, ranks=True, fold=fold,
        workspace=workspace, leaders=leaders, overlaps=overlaps,
    )  # fmt: skip
    rank_leaders(
        leaders, num_rows=num_rows - first_row, num_tiles=num_tiles(packed), vocab_size=vocab_size,
        block=packed.tiles.block_out, num_children=num_children, out_tokens=ranking.tokens,
        out_log_probs=ranking.log_probs, overlaps=overlaps,
    )  # fmt: skip


def launch_head_tiles(
    h: Tensor, packed: PackedLinear, draw: Draw, *, num_rows: int, first_row: int, vocab_size: int, ranks: bool,
    fold: NormFold | None, workspace: Workspace, leaders: Leaders, overlaps: bool,
) -> None:  # fmt: skip
    rows = num_rows - first_row
    seed_mix, positions_T = noise_arguments(draw)
    head_tiles[grid_of(packed, rows)](
        h, packed.values, packed.scales, packed.bias, workspace.partials, workspace.counters,
        draw.temperature, seed_mix, positions_T, leaders.firsts, leaders.seconds, leaders.sums, leaders.totals,
        first_row, num_rows, vocab_size,
        **norm_arguments(fold), **shape_constants(packed, rows), NOISY=draw.noise is not None, RANKS=ranks,
        OVERLAPS=overlaps, **options_of(packed, overlaps),
    )  # fmt: skip
