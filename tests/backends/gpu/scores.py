"""Scores in memory, sampled by the parts of the head's kernel that take up the scores it makes itself."""

import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.sampling.gumbel_noise import Draw, totals_of
from forerun.backends.gpu.sampling.join_tiles import Sampled, TopK, join_samples, join_topk
from forerun.backends.gpu.sampling.tile_maxima import TileMaxima, store_maxima

SCORE_BLOCK = 1024  # tokens of a tile


@triton.jit
def score_tiles(
    scores, score_stride, draw, maxima, first_row, num_tiles, vocab_size, IS_TOPK: tl.constexpr, BLOCK_V: tl.constexpr
):
    """The maxima of one row in one tile."""
    tile = tl.program_id(0)
    tokens_V = tile * BLOCK_V + tl.arange(0, BLOCK_V)
    rows_T = tl.program_id(1) + tl.arange(0, 1)
    is_row_T = rows_T >= 0
    places_TV = rows_T.to(tl.int64)[:, None] * score_stride + tokens_V[None, :]
    scores_TV = tl.load(scores + places_TV, mask=(tokens_V < vocab_size)[None, :], other=0.0)
    totals_TV = totals_of(scores_TV, tokens_V, vocab_size, first_row + rows_T, is_row_T, draw, IS_TOPK)
    store_maxima(totals_TV, tokens_V, rows_T, is_row_T, tile, num_tiles, vocab_size, maxima, IS_TOPK)


def sample_scores(scores_RV: Tensor, draw: Draw, sampled: Sampled, maxima: TileMaxima, *, first_row: int = 0) -> None:
    """The best token of each row of float32 scores; row 0 is the pass's `first_row`."""
    num_tiles = -(-scores_RV.shape[1] // SCORE_BLOCK)
    score_tiles[(num_tiles, len(scores_RV))](
        scores_RV, scores_RV.stride(0), draw, maxima, first_row, num_tiles, scores_RV.shape[1], False, SCORE_BLOCK
    )
    join_samples(maxima, sampled, num_tiles=num_tiles, num_rows=len(scores_RV), overlaps=False)


def topk_scores(
    scores_RV: Tensor, draw: Draw, topk: TopK, maxima: TileMaxima, *, num_children: int, vocab_size: int
) -> None:
    """The likeliest of the first `vocab_size` tokens of each row."""
    num_tiles = -(-vocab_size // SCORE_BLOCK)
    score_tiles[(num_tiles, len(scores_RV))](
        scores_RV, scores_RV.stride(0), draw, maxima, 0, num_tiles, vocab_size, True, SCORE_BLOCK
    )
    join_topk(
        maxima, topk, column_ids=draw.column_ids, num_tiles=num_tiles, num_rows=len(scores_RV), vocab_size=vocab_size,
        block=SCORE_BLOCK, num_children=num_children, overlaps=False,
    )  # fmt: skip
