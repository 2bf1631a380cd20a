"""The best token of each tile of the vocabulary, from which `join_tiles` finds the best of the row.

A total is score / temperature + noise. A total and its token form one int64 key, so the best token has the largest key,
independent of how tokens are divided into tiles and of the order in which tiles are joined.

Legend: T rows, V tokens of a tile, N tiles of the vocabulary.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

LEAST_KEY = tl.constexpr(-(1 << 63))  # Below every token's key.
NO_TOTAL = tl.constexpr(float("-inf"))


class TileMaxima(NamedTuple):
    """Scratch memory between the kernel for tiles and the kernel for rows; strides are those of the launch.

    Args:
        firsts, seconds: int64 [T * N] keys of a tile's best and second-best token; the second best only for sampling.
        sums: float32 [T * N] exp(total - the tile's best total), summed over the tile. For top-k only.
        totals: float32 [T * vocabulary]. For top-k only.
    """

    firsts: Tensor
    seconds: Tensor
    sums: Tensor
    totals: Tensor

    @classmethod
    def for_vocabulary(cls, vocab_size: int, *, block: int, max_rows: int, is_topk: bool, device: str) -> "TileMaxima":
        """For tiles of `block` tokens or more."""
        num_tiles = max_rows * triton.cdiv(vocab_size, block)
        return cls(
            firsts=torch.empty(num_tiles, dtype=torch.int64, device=device),
            seconds=torch.empty(0 if is_topk else num_tiles, dtype=torch.int64, device=device),
            sums=torch.empty(num_tiles if is_topk else 0, device=device),
            totals=torch.empty(max_rows * vocab_size if is_topk else 0, device=device),
        )


@triton.jit
def keys_of(totals, tokens):
    """int64 keys that sort like the totals; of equal totals, the lower token has the larger key. NaN is the largest."""
    return (ordered_bits(totals).to(tl.int64) << 32) | (0x7FFFFFFF - tokens).to(tl.int64)


@triton.jit
def ordered_bits(totals):
    """int32 that sort like the totals; NaN is above all numbers."""
    bits = tl.where(totals == 0.0, 0.0, totals).to(tl.int32, bitcast=True)  # Minus zero counts as zero.
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return tl.where(totals != totals, 0x7FC00000, ordered)


@triton.jit
def order_total(ordered):
    """The inverse of `ordered_bits`."""
    return tl.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered).to(tl.float32, bitcast=True)


@triton.jit
def key_totals(keys):
    """The totals in keys."""
    return order_total((keys >> 32).to(tl.int32))


@triton.jit
def key_tokens(keys):
    """The tokens in keys."""
    return 0x7FFFFFFF - (keys & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def store_maxima(totals_TV, tokens_V, rows_T, is_row_T, tile, num_tiles, vocab_size, maxima, IS_TOPK: tl.constexpr):
    """firsts[t, tile] = max over v of key(total[t, v], v), and the other fields of `TileMaxima`.

    totals [T, V] float32 of the tokens of one tile; tokens from vocab_size on do not exist.
    """
    is_token_1V = (tokens_V < vocab_size)[None, :]
    keys_TV = tl.where(is_token_1V, keys_of(totals_TV, tokens_V[None, :]), LEAST_KEY)
    firsts_T = tl.max(keys_TV, axis=1)
    places_T = rows_T * num_tiles + tile
    tl.store(maxima.firsts + places_T, firsts_T, mask=is_row_T)
    if IS_TOPK:
        bests_T = key_totals(firsts_T)
        bests_T = tl.where(bests_T == NO_TOTAL, 0.0, bests_T)  # Then each share is 0, not NaN.
        shares_TV = tl.where(is_token_1V, tl.exp(totals_TV - bests_T[:, None]), 0.0)
        tl.store(maxima.sums + places_T, tl.sum(shares_TV, axis=1), mask=is_row_T)
        places_TV = rows_T.to(tl.int64)[:, None] * vocab_size + tokens_V[None, :]
        tl.store(maxima.totals + places_TV, totals_TV, mask=is_row_T[:, None] & is_token_1V)
    else:
        seconds_T = tl.max(tl.where(keys_TV == firsts_T[:, None], LEAST_KEY, keys_TV), axis=1)
        tl.store(maxima.seconds + places_T, seconds_T, mask=is_row_T)
