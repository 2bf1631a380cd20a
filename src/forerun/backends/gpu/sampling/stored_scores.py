"""Sampling from scores in memory: for requests that shape them, biases, penalties, temperature and filters are applied
to whole rows; then noise is added and maxima are found.

`output_projection` does not write scores to memory, but cannot filter, since it never has a whole row.

Legend: R rows, V columns of scores (tokens, for a draft those it has).
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.kernel_parts import await_inputs, launch_options
from forerun.backends.gpu.passes.linear import linear
from forerun.backends.gpu.sampling.gumbel_noise import Draw, totals_of
from forerun.backends.gpu.sampling.join_tiles import Sampled, TopK, join_samples, join_topk
from forerun.backends.gpu.sampling.output_projection import OutputProjection
from forerun.backends.gpu.sampling.score_shaping import SCORE_BLOCK, RequestSettings, RowPaths, ScoreRows, shape_scores
from forerun.backends.gpu.sampling.tile_maxima import TileMaxima, store_maxima
from forerun.backends.gpu.sampling.truncation import Filters, find_cutoffs, kept_scores


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredScores:
    """Scores in memory with the parameters that shape them.

    Args:
        settings: None: the scores are not shaped; else the temperature of a draw must be 1, as the settings have it.
        filters: None: no token is filtered out, as in greedy requests.
        maxima: with room for all rows of a call.
    """

    rows: ScoreRows
    settings: RequestSettings | None
    filters: Filters | None
    paths: RowPaths
    maxima: TileMaxima
    overlaps: bool


def sample_stored(stored: StoredScores, draw: Draw, sampled: Sampled, *, num_rows: int) -> None:
    """Like `output_projection.sample_tokens`, from the scores of the first rows."""
    fill_maxima(stored, draw, num_rows=num_rows, first_row=0, is_topk=False)
    num_tiles = num_tiles_of(stored.rows)
    join_samples(stored.maxima, sampled, num_tiles=num_tiles, num_rows=num_rows, overlaps=stored.overlaps)


def topk_stored(
    stored: StoredScores, draw: Draw, topk: TopK, *, num_children: int, num_rows: int, first_row: int
) -> None:
    """Like `output_projection.topk_tokens`; the scores are those of the pass's rows from `first_row` on."""
    fill_maxima(stored, draw, num_rows=num_rows, first_row=first_row, is_topk=True)
    join_topk(
        stored.maxima, topk, column_ids=draw.column_ids, num_tiles=num_tiles_of(stored.rows),
        num_rows=num_rows - first_row, vocab_size=stored.rows.num_columns, block=SCORE_BLOCK,
        num_children=num_children, overlaps=stored.overlaps,
    )  # fmt: skip


def num_tiles_of(rows: ScoreRows) -> int:
    """Tiles of SCORE_BLOCK columns."""
    return int(triton.cdiv(rows.num_columns, SCORE_BLOCK))


def write_scores(head: OutputProjection, rows: ScoreRows, *, num_rows: int, first_row: int) -> None:
    """Write the scores of rows first_row to num_rows of h to memory."""
    linear(
        head.h, head.packed, rows.scores, num_rows=num_rows, first_row=first_row, norm=head.norm,
        workspace=head.workspace, overlaps=head.overlaps,
    )  # fmt: skip


def fill_maxima(stored: StoredScores, draw: Draw, *, num_rows: int, first_row: int, is_topk: bool) -> None:
    """Shape the scores of rows first_row to num_rows of the pass, add noise, and store every tile's maxima."""
    rows = stored.rows
    overlaps = stored.overlaps
    count = num_rows - first_row
    if stored.settings is not None:
        shape_scores(rows, stored.settings, stored.paths, num_rows=count, column_ids=draw.column_ids, overlaps=overlaps)
    if stored.filters is not None:
        find_cutoffs(rows, stored.filters, num_rows=count, overlaps=overlaps)
    cutoffs = None if stored.filters is None else rows.cutoffs
    draw_tiles(
        rows, cutoffs, draw, stored.maxima, num_rows=count, first_row=first_row, is_topk=is_topk, overlaps=overlaps
    )  # fmt: skip


def draw_tiles(
    rows: ScoreRows, cutoffs: Tensor | None, draw: Draw, maxima: TileMaxima, *, num_rows: int, first_row: int,
    is_topk: bool, overlaps: bool,
) -> None:  # fmt: skip
    """Compute the maxima of every tile of scores in memory; with cutoffs, only over tokens above them."""
    draw_kernel[(num_tiles_of(rows), num_rows)](
        rows.scores, rows.scores.stride(0), cutoffs, draw, maxima, first_row, rows.num_columns,
        BLOCK_V=SCORE_BLOCK, IS_TOPK=is_topk, OVERLAPS=overlaps, **launch_options(num_warps=4, overlaps=overlaps),
    )  # fmt: skip


@triton.jit(do_not_specialize=["first_row"])
def draw_kernel(
    scores, score_stride, cutoffs, draw, maxima, first_row, vocab_size,
    BLOCK_V: tl.constexpr, IS_TOPK: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """maxima[r, tile] = max over v of kept(score[r, v]) + g[first_row + r, v], see `kept_scores`.

    scores [R, score_stride] float32, cutoffs int64 [R] or None, a `Draw`, a `TileMaxima`. Programs are (tile, row).
    """
    await_inputs(OVERLAPS)
    row = tl.program_id(1)
    columns_V = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    places_V = scores + row.to(tl.int64) * score_stride + columns_V
    scores_V = tl.load(places_V, mask=columns_V < vocab_size, other=0.0)
    if cutoffs is not None:
        scores_V = kept_scores(scores_V, columns_V, tl.load(cutoffs + row))
    row_1 = row + tl.arange(0, 1)
    totals_1V = totals_of(scores_V[None, :], columns_V, vocab_size, first_row + row_1, row_1 >= 0, draw, IS_TOPK)
    store_maxima(
        totals_1V, columns_V, row_1, row_1 >= 0, tl.program_id(0), tl.num_programs(0), vocab_size, maxima, IS_TOPK
    )
