"""Scores to tokens: the totals of a tile, and the kernels that read shaped scores from memory; see `head` for those
that make the scores themselves.

A choice takes exact noise, since every drafter has to agree with it. A ranking is a guess and takes the quick one.

Legend: T rows of a tile, V tokens of a tile, R rows, C children.
"""

from dataclasses import dataclass
from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.choosing.noise import Noise, exact_noise, quick_noise, row_keys
from forerun.backends.gpu.choosing.tile_maxima import Leaders, choose_leaders, rank_leaders, store_leaders
from forerun.backends.gpu.language import await_inputs, launch_options

SCORE_BLOCK: Final = 1024  # tokens of a tile that is read from memory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draw:
    """How scores become totals.

    Args:
        temperature: float32 [1] on the device: what scores are divided by.
        noise: none for greedy.
    """

    temperature: Tensor
    noise: Noise | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choice:
    """Where the rows' tokens go: int32 [R] tokens, float32 [R] totals of them, and the next best totals.

    `best` is NaN or plus infinity if any total of the row is, and minus infinity if all are: nothing is chosen then.
    """

    tokens: Tensor
    best: Tensor
    second: Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ranking:
    """Where the rows' likeliest tokens go, best first: int32 [R, C or more], float32 likewise.

    Where a vocabulary has fewer tokens than are asked for, the token is -1 and the log-probability minus infinity.
    """

    tokens: Tensor
    log_probs: Tensor


@triton.jit
def totals_of(
    scores_TV, tokens_V, rows_T, is_row_T, temperature, seed_mix, positions,
    NOISY: tl.constexpr, RANKS: tl.constexpr,
):  # fmt: skip
    """score / temperature + noise. Rows are those of the pass, and the noise that of the tokens after them."""
    totals_TV = tl.div_rn(scores_TV, tl.broadcast_to(tl.load(temperature), scores_TV.shape))
    if NOISY:
        low_T, high_T = row_keys(seed_mix, tl.load(positions + rows_T, mask=is_row_T, other=0) + 1)
        if RANKS:
            totals_TV += quick_noise(low_T[:, None], high_T[:, None], tokens_V[None, :])
        else:
            totals_TV += exact_noise(low_T[:, None], high_T[:, None], tokens_V[None, :])
    return totals_TV


@triton.jit(do_not_specialize=["first_row"])
def score_tiles(
    scores, score_stride, temperature, seed_mix, positions, firsts, seconds, sums, totals,
    first_row, num_tiles, vocab_size,
    NOISY: tl.constexpr, RANKS: tl.constexpr, BLOCK_V: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """The leaders of one row in one tile."""
    await_inputs(OVERLAPS)
    tile = tl.program_id(0)
    tokens_V = tile * BLOCK_V + tl.arange(0, BLOCK_V)
    rows_T = tl.program_id(1) + tl.arange(0, 1)
    is_row_T = rows_T >= 0
    places_TV = rows_T.to(tl.int64)[:, None] * score_stride + tokens_V[None, :]
    scores_TV = tl.load(scores + places_TV, mask=(tokens_V < vocab_size)[None, :], other=0.0)
    totals_TV = totals_of(
        scores_TV, tokens_V, first_row + rows_T, is_row_T, temperature, seed_mix, positions, NOISY, RANKS
    )
    store_leaders(
        totals_TV, tokens_V, rows_T, is_row_T, tile, num_tiles, vocab_size, firsts, seconds, sums, totals, RANKS
    )


def choose_from_scores(
    scores_RV: Tensor, draw: Draw, choice: Choice, leaders: Leaders, *, first_row: int = 0, overlaps: bool
) -> None:
    """The best token of each row of float32 scores, of equal totals the lowest; row 0 is the pass's `first_row`."""
    num_tiles = launch_score_tiles(
        scores_RV, draw, leaders, vocab_size=scores_RV.shape[1], first_row=first_row, ranks=False, overlaps=overlaps
    )
    choose_leaders(
        leaders, num_rows=scores_RV.shape[0], num_tiles=num_tiles, out_tokens=choice.tokens, out_best=choice.best,
        out_second=choice.second, overlaps=overlaps,
    )  # fmt: skip


def rank_from_scores(
    scores_RV: Tensor, draw: Draw, ranking: Ranking, leaders: Leaders, *, num_children: int, vocab_size: int,
    first_row: int = 0, overlaps: bool,
) -> None:  # fmt: skip
    """The likeliest of the first `vocab_size` tokens of each row, and the log-softmax of their totals."""
    num_tiles = launch_score_tiles(
        scores_RV, draw, leaders, vocab_size=vocab_size, first_row=first_row, ranks=True, overlaps=overlaps
    )
    rank_leaders(
        leaders, num_rows=scores_RV.shape[0], num_tiles=num_tiles, vocab_size=vocab_size, block=SCORE_BLOCK,
        num_children=num_children, out_tokens=ranking.tokens, out_log_probs=ranking.log_probs, overlaps=overlaps,
    )  # fmt: skip


def launch_score_tiles(
    scores_RV: Tensor, draw: Draw, leaders: Leaders, *, vocab_size: int, first_row: int, ranks: bool, overlaps: bool
) -> int:
    """The number of tiles."""
    num_tiles = -(-vocab_size // SCORE_BLOCK)
    seed_mix, positions_T = noise_arguments(draw)
    score_tiles[(num_tiles, scores_RV.shape[0])](
        scores_RV, scores_RV.stride(0), draw.temperature, seed_mix, positions_T,
        leaders.firsts, leaders.seconds, leaders.sums, leaders.totals, first_row, num_tiles, vocab_size,
        NOISY=draw.noise is not None, RANKS=ranks, BLOCK_V=SCORE_BLOCK, OVERLAPS=overlaps,
        **launch_options(num_warps=4, overlaps=overlaps),
    )  # fmt: skip
    return num_tiles


def noise_arguments(draw: Draw) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if draw.noise is None else (draw.noise.seed_mix, draw.noise.positions_T)
