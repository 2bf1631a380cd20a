"""The best tokens of rows of totals: of each tile of the vocabulary first, then of the row.

A total is score / temperature + noise. It and its token make one int64, a key, so that the best token of some is the
largest of their keys, whichever way they are divided into tiles and in whichever order they are joined.

Legend: T rows, V tokens of a tile, N tiles of the vocabulary, C children.
"""

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.language import await_inputs, launch_options

MOST_CHILDREN: Final = 16
LEAST_KEY = tl.constexpr(-(1 << 63))  # comes after every token's key
NO_TOTAL = tl.constexpr(float("-inf"))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Leaders:
    """Scratch memory between the tiles' kernel and the rows' one, each used with the stride of its launch.

    Args:
        firsts, seconds: int64 [T * N] keys of a tile's best and next best token.
        sums: float32 [T * N] exp(total - the tile's best total), summed over the tile. Rankings only.
        totals: float32 [T * vocabulary]. Rankings only.
    """

    firsts: Tensor
    seconds: Tensor
    sums: Tensor
    totals: Tensor

    @classmethod
    def for_vocabulary(cls, vocab_size: int, *, block: int, max_rows: int, ranks: bool, device: str) -> "Leaders":
        """For tiles of `block` tokens or more."""
        num_tiles = max_rows * triton.cdiv(vocab_size, block)
        return cls(
            firsts=torch.empty(num_tiles, dtype=torch.int64, device=device),
            seconds=torch.empty(0 if ranks else num_tiles, dtype=torch.int64, device=device),
            sums=torch.empty(num_tiles if ranks else 0, device=device),
            totals=torch.empty(max_rows * vocab_size if ranks else 0, device=device),
        )


@triton.jit
def keys_of(totals, tokens):
    """int64 in the order of the totals, of equal ones the lower token first; NaN comes before all numbers."""
    bits = tl.where(totals == 0.0, 0.0, totals).to(tl.int32, bitcast=True)  # -0 is 0
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    ordered = tl.where(totals != totals, 0x7FC00000, ordered)
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - tokens).to(tl.int64)


@triton.jit
def key_totals(keys):
    ordered = (keys >> 32).to(tl.int32)
    return tl.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered).to(tl.float32, bitcast=True)


@triton.jit
def key_tokens(keys):
    return 0x7FFFFFFF - (keys & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def store_leaders(
    totals_TV, tokens_V, rows_T, is_row_T, tile, num_tiles, vocab_size, firsts, seconds, sums, totals,
    RANKS: tl.constexpr,
):  # fmt: skip
    """Write what the rows' kernel needs to know of a tile; tokens from vocab_size on do not exist."""
    is_token_1V = (tokens_V < vocab_size)[None, :]
    keys_TV = tl.where(is_token_1V, keys_of(totals_TV, tokens_V[None, :]), LEAST_KEY)
    firsts_T = tl.max(keys_TV, axis=1)
    places_T = rows_T * num_tiles + tile
    tl.store(firsts + places_T, firsts_T, mask=is_row_T)
    if RANKS:
        bests_T = key_totals(firsts_T)
        bests_T = tl.where(bests_T == NO_TOTAL, 0.0, bests_T)  # then each share is 0, not NaN
        shares_TV = tl.where(is_token_1V, tl.exp(totals_TV - bests_T[:, None]), 0.0)
        tl.store(sums + places_T, tl.sum(shares_TV, axis=1), mask=is_row_T)
        places_TV = rows_T.to(tl.int64)[:, None] * vocab_size + tokens_V[None, :]
        tl.store(totals + places_TV, totals_TV, mask=is_row_T[:, None] & is_token_1V)
    else:
        seconds_T = tl.max(tl.where(keys_TV == firsts_T[:, None], LEAST_KEY, keys_TV), axis=1)
        tl.store(seconds + places_T, seconds_T, mask=is_row_T)


@triton.jit
def choose_of_tiles(
    firsts, seconds, num_tiles, out_tokens, out_best, out_second, TILES: tl.constexpr, OVERLAPS: tl.constexpr
):
    """One row's token, its total and the next best total; of a single token the next best is itself."""
    await_inputs(OVERLAPS)
    row = tl.program_id(0)
    tiles_N = tl.arange(0, TILES)
    places_N = row * num_tiles + tiles_N
    firsts_N = tl.load(firsts + places_N, mask=tiles_N < num_tiles, other=LEAST_KEY)
    seconds_N = tl.load(seconds + places_N, mask=tiles_N < num_tiles, other=LEAST_KEY)
    best = tl.max(firsts_N)
    second = tl.max(tl.where(firsts_N == best, seconds_N, firsts_N))
    second = tl.where(second == LEAST_KEY, best, second)
    tl.store(out_tokens + row, key_tokens(best))
    tl.store(out_best + row, key_totals(best))
    tl.store(out_second + row, key_totals(second))


@triton.jit
def rank_of_tiles(
    firsts, sums, totals, num_tiles, vocab_size, out_tokens, out_log_probs, row_stride,
    BLOCK_V: tl.constexpr, TILES: tl.constexpr, COUNT: tl.constexpr, PADDED: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """One row's COUNT best tokens and their log-probabilities; token -1 and minus infinity where there are no more.

    They lie in the COUNT tiles that have the largest maxima: each other tile's tokens come after all those maxima.
    """
    await_inputs(OVERLAPS)
    row = tl.program_id(0)
    tiles_N = tl.arange(0, TILES)
    keys_N = tl.load(firsts + row * num_tiles + tiles_N, mask=tiles_N < num_tiles, other=LEAST_KEY)
    sums_N = tl.load(sums + row * num_tiles + tiles_N, mask=tiles_N < num_tiles, other=0.0)
    largest = key_totals(tl.max(keys_N))
    shares_N = tl.where(keys_N != LEAST_KEY, sums_N * tl.exp(key_totals(keys_N) - largest), 0.0)
    log_sum = largest + tl.log(tl.sum(shares_N))
    leaders_C = key_tokens(best_keys(keys_N, COUNT, PADDED))
    tokens_CV = (leaders_C // BLOCK_V * BLOCK_V)[:, None] + tl.arange(0, BLOCK_V)[None, :]
    is_token_CV = (tl.arange(0, PADDED) < COUNT)[:, None] & (tokens_CV >= 0) & (tokens_CV < vocab_size)
    totals_CV = tl.load(totals + row.to(tl.int64) * vocab_size + tokens_CV, mask=is_token_CV, other=0.0)
    keys_CV = tl.where(is_token_CV, keys_of(totals_CV, tokens_CV), LEAST_KEY)
    keys_C = best_keys(tl.reshape(keys_CV, (PADDED * BLOCK_V,)), COUNT, PADDED)
    is_there_C = keys_C != LEAST_KEY
    places_C = tl.arange(0, PADDED)
    out = row * row_stride + places_C
    tl.store(out_tokens + out, tl.where(is_there_C, key_tokens(keys_C), -1), mask=places_C < COUNT)
    log_probs_C = tl.where(is_there_C, key_totals(keys_C) - log_sum, NO_TOTAL)
    tl.store(out_log_probs + out, log_probs_C, mask=places_C < COUNT)


@triton.jit
def best_keys(keys, COUNT: tl.constexpr, PADDED: tl.constexpr):
    """The COUNT largest of some keys in a row, largest first, and LEAST_KEY up to PADDED."""
    places_C = tl.arange(0, PADDED)
    best_C = tl.full((PADDED,), LEAST_KEY, tl.int64)
    for place in range(COUNT):
        key = tl.max(keys)
        keys = tl.where(keys == key, LEAST_KEY, keys)
        best_C = tl.where(places_C == place, key, best_C)
    return best_C


def choose_leaders(
    leaders: Leaders, *, num_rows: int, num_tiles: int, out_tokens: Tensor, out_best: Tensor, out_second: Tensor,
    overlaps: bool,
) -> None:  # fmt: skip
    """Join what `store_leaders` wrote of num_rows rows."""
    choose_of_tiles[(num_rows,)](
        leaders.firsts, leaders.seconds, num_tiles, out_tokens, out_best, out_second,
        TILES=triton.next_power_of_2(num_tiles), OVERLAPS=overlaps,
        **launch_options(num_warps=8, overlaps=overlaps),
    )  # fmt: skip


def rank_leaders(
    leaders: Leaders, *, num_rows: int, num_tiles: int, vocab_size: int, block: int, num_children: int,
    out_tokens: Tensor, out_log_probs: Tensor, overlaps: bool,
) -> None:  # fmt: skip
    """Join what `store_leaders` wrote of num_rows rows for a ranking."""
    assert 1 <= num_children <= MOST_CHILDREN, "a node of a draft tree has few children"
    assert out_tokens.stride() == out_log_probs.stride(), "one kernel writes both alike"
    rank_of_tiles[(num_rows,)](
        leaders.firsts, leaders.sums, leaders.totals, num_tiles, vocab_size, out_tokens, out_log_probs,
        out_tokens.stride(0), BLOCK_V=block, TILES=triton.next_power_of_2(num_tiles), COUNT=num_children,
        PADDED=triton.next_power_of_2(num_children), OVERLAPS=overlaps,
        **launch_options(num_warps=8, overlaps=overlaps),
    )  # fmt: skip
