"""top_k, top_p and min_p on the device: one cutoff key per row, above which tokens survive the filters.

The rule is that of `sampling.truncation`. Which tokens survive the filters depends only on their own row: probabilities
are summed as integers, whose sum does not depend on the order, and better tokens are counted. Rounds on the device and
the host's loop use the same kernels, so that they keep the same tokens.

The cutoff is found by bisection over keys (`tile_maxima.keys_of`, which are all different). Usually only few tokens
need to be considered: those at least as good as the best token of the LEADERS-th best tile.

Legend: R rows, V columns, N tiles of LEADER_BLOCK columns, K leading keys, all of them or a block.
"""

import math
from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from forerun.backends.gpu.kernel_parts import await_inputs, launch_options, on_device
from forerun.backends.gpu.sampling.score_shaping import LEADER_BLOCK, SCORE_BLOCK, ScoreRows
from forerun.backends.gpu.sampling.tile_maxima import NO_TOTAL, key_totals, keys_of, order_total, ordered_bits
from forerun.core.config import SamplingParams

NUM_WARPS: Final = 16
KEY_BLOCK: Final = 2048  # Keys or scores that a program reads at a time.
LEADERS = tl.constexpr(128)
LOG2_E = tl.constexpr(1.4426950408889634)
SHARE_UNITS = tl.constexpr(float(1 << 40))  # As fine as in `sampling.truncation`.
ALL_MASS = tl.constexpr((1 << 63) - 1)
LEAST_ORDER = tl.constexpr(-(1 << 31))  # Not above any number's ordered bits.
TOKEN_BITS = tl.constexpr(0x7FFFFFFF)


class Filters(NamedTuple):
    """A request's filters. The tensors' addresses never change.

    Args:
        top_k: int32 [1], 0 if it is off.
        top_p: float64 [1]
        log_min_p: float32 [1], minus infinity if it is off.
    """

    top_k: Tensor
    top_p: Tensor
    log_min_p: Tensor

    @classmethod
    def on(cls, device: str | torch.device) -> "Filters":
        """Filters that keep everything."""
        return cls(
            top_k=torch.zeros(1, dtype=torch.int32, device=device),
            top_p=torch.ones(1, dtype=torch.float64, device=device),
            log_min_p=torch.full((1,), -math.inf, device=device),
        )

    def set_request(self, params: SamplingParams, vocab_size: int) -> None:
        """Set a request's filters."""
        self.top_k.fill_(params.top_k if params.top_k < vocab_size else 0)
        self.top_p.fill_(params.top_p)
        self.log_min_p.fill_(math.log(params.min_p) if params.min_p > 0.0 else -math.inf)


def find_cutoffs(rows: ScoreRows, filters: Filters, *, num_rows: int, overlaps: bool) -> None:
    """Compute `rows.cutoffs` from the scores and the best score of each tile."""
    num_tiles = rows.tile_bests.shape[1]
    cutoffs_kernel[(num_rows,)](
        rows, rows.scores.stride(0), num_tiles, rows.num_columns, filters,
        TILES=triton.next_power_of_2(num_tiles), BLOCK=KEY_BLOCK, OVERLAPS=overlaps,
        **launch_options(num_warps=NUM_WARPS, overlaps=overlaps),
    )  # fmt: skip


def truncated(scores_TV: Tensor, params: SamplingParams) -> Tensor:
    """Set tokens outside top_k, top_p or min_p to minus infinity; NaN is kept, so that the sampler refuses the row.

    Args:
        scores_TV: float32
    """
    num_rows, vocab_size = scores_TV.shape
    filters = Filters.on(scores_TV.device)
    filters.set_request(params, vocab_size)
    rows = ScoreRows.over(scores_TV.clone(), num_rows=num_rows, num_columns=vocab_size)
    padded_TV = functional.pad(rows.scores, (0, -vocab_size % LEADER_BLOCK), value=-torch.inf)
    rows.tile_bests.copy_(padded_TV.view(num_rows, -1, LEADER_BLOCK).amax(-1))
    with on_device(scores_TV.device):
        find_cutoffs(rows, filters, num_rows=num_rows, overlaps=False)
        drop(rows, num_rows=num_rows)
    return rows.scores


def drop(rows: ScoreRows, *, num_rows: int) -> None:
    """Set scores of tokens that are not above their row's cutoff to minus infinity."""
    drop_kernel[(triton.cdiv(rows.num_columns, SCORE_BLOCK), num_rows)](
        rows, rows.scores.stride(0), rows.num_columns, BLOCK_V=SCORE_BLOCK, **launch_options(num_warps=4)
    )


@triton.jit
def drop_kernel(rows, score_stride, vocab_size, BLOCK_V: tl.constexpr):
    """scores[r, v] = `kept_scores`. Programs are (block of columns, row)."""
    row = tl.program_id(1)
    tokens_V = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    places_V = rows.scores + row.to(tl.int64) * score_stride + tokens_V
    scores_V = tl.load(places_V, mask=tokens_V < vocab_size, other=0.0)
    tl.store(places_V, kept_scores(scores_V, tokens_V, tl.load(rows.cutoffs + row)), mask=tokens_V < vocab_size)


@triton.jit
def kept_scores(scores, tokens, cutoff):
    """The score of a token above the cutoff, otherwise minus infinity. NaN and plus infinity are always kept, so that
    the sampler refuses the row."""
    is_kept = (keys_of(scores, tokens) > cutoff) | ((scores < float("inf")) == 0)
    return tl.where(is_kept, scores, NO_TOTAL)


@triton.jit
def cutoffs_kernel(
    rows, score_stride, num_tiles, vocab_size, filters, TILES: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr
):
    """cutoffs[r] = the largest of: the key after the top_k-th; the first after which the shares of better keys reach
    top_p of those of the top_k; the one below best + log min_p.

    `rows` is a `ScoreRows`, `filters` a `Filters`. There is a program for each row.
    """
    await_inputs(OVERLAPS)
    row = tl.program_id(0)
    tiles_N = tl.arange(0, TILES)
    bests_N = tl.load(rows.tile_bests + row * num_tiles + tiles_N, mask=tiles_N < num_tiles, other=NO_TOTAL)
    order_N = ordered_bits(bests_N)
    highest = tl.max(order_N)
    best = order_total(highest)
    best = tl.where((best > float("-inf")) & (best < float("inf")), best, 0.0)  # Otherwise the row is refused.
    top_k = tl.load(filters.top_k)
    top_p = tl.load(filters.top_p)
    least = best + tl.load(filters.log_min_p)
    cutoff = (ordered_bits(least).to(tl.int64) << 32) - 1
    if (top_k > 0) | (top_p < 1.0):
        scores = rows.scores + row.to(tl.int64) * score_stride
        keys = rows.keys + row.to(tl.int64) * vocab_size
        floor = find_floor(order_N, num_tiles)
        count, mass, leading_mass = gather_leading(scores, keys, floor, best, vocab_size, BLOCK)
        if tl.where(top_k > 0, count < top_k, leading_mass < mass_of_top_p(mass, top_p)):
            floor = tl.full((), LEAST_ORDER, tl.int32)
            count, mass, leading_mass = gather_leading(scores, keys, floor, best, vocab_size, BLOCK)
        tl.debug_barrier()  # Every thread has stored its keys before another reads them.
        if top_k > 0:
            last, mass = bisect_keys(keys, count, leading_mass, floor, highest, best, top_k, ALL_MASS, BLOCK)
            cutoff = tl.maximum(cutoff, last)
        if top_p < 1.0:
            most_mass = mass_of_top_p(mass, top_p)
            last, mass = bisect_keys(keys, count, leading_mass, floor, highest, best, count, most_mass, BLOCK)
            cutoff = tl.maximum(cutoff, last)
    tl.store(rows.cutoffs + row, cutoff)


@triton.jit
def mass_of_top_p(mass, top_p):
    """top_p of the mass, rounded up to an integer: a token is kept if all better tokens together have less."""
    return tl.ceil(mass.to(tl.float64) * top_p).to(tl.int64)


@triton.jit
def shares(scores, best):
    """int64, the probabilities of tokens relative to the best one; meaningless in a row with NaN or infinity."""
    distances = tl.where(scores <= best, scores - best, 0.0)
    return (tl.exp2(distances * LOG2_E) * SHARE_UNITS).to(tl.int64)


@triton.jit
def find_floor(order_N, num_tiles):
    """The ordered bits of the LEADERS-th best tile's score: at least LEADERS tokens are no worse. The lowest bits if
    there are fewer tiles."""
    low = tl.full((), LEAST_ORDER, tl.int64)
    high = tl.full((), -LEAST_ORDER, tl.int64)
    if num_tiles >= LEADERS:
        while high - low > 1:
            middle = (low + high) >> 1
            is_reached = tl.sum((order_N.to(tl.int64) >= middle).to(tl.int32)) >= LEADERS
            low = tl.where(is_reached, middle, low)
            high = tl.where(is_reached, high, middle)
    return low.to(tl.int32)


@triton.jit
def gather_leading(scores, keys, floor, best, vocab_size, BLOCK: tl.constexpr):
    """Write the keys of the tokens that are not below the floor; return their number, the sum of all tokens' shares,
    and the sum of these tokens' shares."""
    count = tl.full((), 0, tl.int32)
    mass = tl.full((), 0, tl.int64)
    leading_mass = mass
    for start in range(0, vocab_size, BLOCK):
        tokens_K = start + tl.arange(0, BLOCK)
        is_there_K = tokens_K < vocab_size
        scores_K = tl.load(scores + tokens_K, mask=is_there_K, other=NO_TOTAL)
        is_leading_K = (ordered_bits(scores_K) >= floor) & is_there_K
        shares_K = tl.where(is_there_K, shares(scores_K, best), 0)
        mass += tl.sum(shares_K)
        leading_mass += tl.sum(tl.where(is_leading_K, shares_K, 0))
        places_K = count + tl.cumsum(is_leading_K.to(tl.int32), 0) - 1
        tl.store(keys + places_K, keys_of(scores_K, tokens_K), mask=is_leading_K)
        count += tl.sum(is_leading_K.to(tl.int32))
    return count, mass, leading_mass


@triton.jit
def bisect_keys(keys, count, mass, floor, highest, best, most, most_mass, BLOCK: tl.constexpr):
    """The cutoff key and the mass of the tokens above it: those with fewer than `most` better tokens, which have less
    than `most_mass` in total.

    The `count` keys, of total `mass`, are all above the lowest key with the bits `floor`. All keys are different, so
    the bisection ends when a single one is undecided, which is then kept.
    """
    low = floor.to(tl.int64) << 32
    high = (highest.to(tl.int64) << 32) | TOKEN_BITS
    num_low = count
    num_high = tl.full((), 0, tl.int32)
    while num_low - num_high > 1:
        middle = (low & high) + ((low ^ high) >> 1)
        num, mass_above = count_above(keys, count, middle, best, BLOCK)
        is_kept = (num < most) & (mass_above < most_mass)
        high = tl.where(is_kept, middle, high)
        num_high = tl.where(is_kept, num, num_high)
        low = tl.where(is_kept, low, middle)
        num_low = tl.where(is_kept, num_low, num)
        mass = tl.where(is_kept, mass, mass_above)
    return low, mass


@triton.jit
def count_above(keys, count, key, best, BLOCK: tl.constexpr):
    """The number of keys above this one, and the sum of their shares."""
    num = tl.full((), 0, tl.int32)
    mass = tl.full((), 0, tl.int64)
    for start in range(0, count, BLOCK):
        places_K = start + tl.arange(0, BLOCK)
        is_there_K = places_K < count
        keys_K = tl.load(keys + places_K, mask=is_there_K, other=0)
        is_above_K = (keys_K > key) & is_there_K
        num += tl.sum(is_above_K.to(tl.int32))
        mass += tl.sum(tl.where(is_above_K, shares(key_totals(keys_K), best), 0))
    return num, mass
