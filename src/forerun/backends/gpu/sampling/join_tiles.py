"""Joins the tiles of a row to find its best token or its top-k.

Legend: R rows, N tiles of the vocabulary, V tokens of a tile, C children: the k of the top-k.
"""

from typing import Final, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.kernel_parts import await_inputs, launch_options
from forerun.backends.gpu.sampling.tile_maxima import (
    LEAST_KEY,
    NO_TOTAL,
    TileMaxima,
    key_tokens,
    key_totals,
    keys_of,
)

MOST_CHILDREN: Final = 16  # Limit per row, because the best tokens are found one after the other.
NUM_WARPS: Final = 8


class Sampled(NamedTuple):
    """The sampled tokens of rows, int32 [R], their totals, float32 [R], and the second-best totals, float32 [R].

    `bests` is NaN or plus infinity if any total of the row is, and minus infinity if all are. No token is valid.
    """

    tokens: Tensor
    bests: Tensor
    seconds: Tensor


class TopK(NamedTuple):
    """The top-k tokens of rows, best first, int32 [R, C or more], and their log-probabilities, float32 of that shape.

    If the vocabulary has fewer tokens than requested, the others are -1 with log-probability minus infinity.
    """

    tokens: Tensor
    log_probs: Tensor


def join_samples(maxima: TileMaxima, sampled: Sampled, *, num_tiles: int, num_rows: int, overlaps: bool) -> None:
    """The best token of each row, from the tile maxima that `store_maxima` wrote."""
    join_samples_kernel[(num_rows,)](
        maxima, sampled, num_tiles, TILES=triton.next_power_of_2(num_tiles), OVERLAPS=overlaps,
        **launch_options(num_warps=NUM_WARPS, overlaps=overlaps),
    )  # fmt: skip


def join_topk(
    maxima: TileMaxima, topk: TopK, *, column_ids: Tensor | None, num_tiles: int, num_rows: int, vocab_size: int,
    block: int, num_children: int, overlaps: bool,
) -> None:  # fmt: skip
    """The `num_children` best tokens of each row, from what `store_maxima` wrote for tiles of `block` columns.

    Args:
        column_ids: as in `Draw`, the token of each of the `vocab_size` columns.
    """
    assert 1 <= num_children <= MOST_CHILDREN, "a node of a draft tree has few children"
    assert topk.tokens.stride() == topk.log_probs.stride(), "one kernel writes both alike"
    join_topk_kernel[(num_rows,)](
        maxima, topk, topk.tokens.stride(0), column_ids, num_tiles, vocab_size, BLOCK_V=block,
        TILES=triton.next_power_of_2(num_tiles), COUNT=num_children, PADDED=triton.next_power_of_2(num_children),
        OVERLAPS=overlaps, **launch_options(num_warps=NUM_WARPS, overlaps=overlaps),
    )  # fmt: skip


@triton.jit
def join_samples_kernel(maxima, sampled, num_tiles, TILES: tl.constexpr, OVERLAPS: tl.constexpr):
    """tokens[r] = the token of max over n of firsts[r, n]; its total, and the next best key's.

    firsts, seconds [R, N] int64 to tokens, bests, seconds [R]. If there is only one token, it is also the second best.
    """
    await_inputs(OVERLAPS)
    row = tl.program_id(0)
    tiles_N = tl.arange(0, TILES)
    places_N = row * num_tiles + tiles_N
    firsts_N = tl.load(maxima.firsts + places_N, mask=tiles_N < num_tiles, other=LEAST_KEY)
    seconds_N = tl.load(maxima.seconds + places_N, mask=tiles_N < num_tiles, other=LEAST_KEY)
    best = tl.max(firsts_N)
    second = tl.max(tl.where(firsts_N == best, seconds_N, firsts_N))
    second = tl.where(second == LEAST_KEY, best, second)
    tl.store(sampled.tokens + row, key_tokens(best))
    tl.store(sampled.bests + row, key_totals(best))
    tl.store(sampled.seconds + row, key_totals(second))


@triton.jit
def join_topk_kernel(
    maxima, topk, row_stride, column_ids, num_tiles, vocab_size,
    BLOCK_V: tl.constexpr, TILES: tl.constexpr, COUNT: tl.constexpr, PADDED: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """tokens[r, c] = the c-th best token; log_probs[r, c] = its total - log(sum over all tokens of exp(total)).

    firsts, sums [R, N], totals [R, vocabulary] to tokens, log_probs [R, COUNT]; token -1 and minus infinity if there
    are no more. The best tokens are in the COUNT tiles with the largest maxima, since every other token is worse than
    all of these maxima. Keys contain columns. With column_ids, [vocabulary], those are the tokens to store; they are
    ascending, so the lower of two columns is the lower token.
    """
    await_inputs(OVERLAPS)
    row = tl.program_id(0)
    tiles_N = tl.arange(0, TILES)
    keys_N = tl.load(maxima.firsts + row * num_tiles + tiles_N, mask=tiles_N < num_tiles, other=LEAST_KEY)
    sums_N = tl.load(maxima.sums + row * num_tiles + tiles_N, mask=tiles_N < num_tiles, other=0.0)
    largest = key_totals(tl.max(keys_N))
    shares_N = tl.where(keys_N != LEAST_KEY, sums_N * tl.exp(key_totals(keys_N) - largest), 0.0)
    log_sum = largest + tl.log(tl.sum(shares_N))
    bests_C = key_tokens(best_keys(keys_N, COUNT, PADDED))
    tokens_CV = (bests_C // BLOCK_V * BLOCK_V)[:, None] + tl.arange(0, BLOCK_V)[None, :]
    is_token_CV = (tl.arange(0, PADDED) < COUNT)[:, None] & (tokens_CV >= 0) & (tokens_CV < vocab_size)
    totals_CV = tl.load(maxima.totals + row.to(tl.int64) * vocab_size + tokens_CV, mask=is_token_CV, other=0.0)
    keys_CV = tl.where(is_token_CV, keys_of(totals_CV, tokens_CV), LEAST_KEY)
    keys_C = best_keys(tl.reshape(keys_CV, (PADDED * BLOCK_V,)), COUNT, PADDED)
    is_there_C = keys_C != LEAST_KEY
    places_C = tl.arange(0, PADDED)
    out = row * row_stride + places_C
    best_C = tl.where(is_there_C, key_tokens(keys_C), -1)
    if column_ids is not None:
        best_C = tl.load(column_ids + best_C, mask=is_there_C, other=-1)
    tl.store(topk.tokens + out, best_C, mask=places_C < COUNT)
    log_probs_C = tl.where(is_there_C, key_totals(keys_C) - log_sum, NO_TOTAL)
    tl.store(topk.log_probs + out, log_probs_C, mask=places_C < COUNT)


@triton.jit
def best_keys(keys, COUNT: tl.constexpr, PADDED: tl.constexpr):
    """The COUNT largest keys, largest first, padded to PADDED with LEAST_KEY."""
    places_C = tl.arange(0, PADDED)
    best_C = tl.full((PADDED,), LEAST_KEY, tl.int64)
    for place in range(COUNT):
        key = tl.max(keys)
        keys = tl.where(keys == key, LEAST_KEY, keys)
        best_C = tl.where(places_C == place, key, best_C)
    return best_C
