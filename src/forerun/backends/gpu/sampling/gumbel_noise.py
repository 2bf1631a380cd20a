"""Scores to totals: the temperature, and Gumbel noise that is a function of (seed, position, token id).

The noise is that of forerun.sampling.noise, computed in the kernel that adds it. Sampled tokens use exact noise, since
the text must not depend on the drafter. A draft's top-k is only a guess and uses faster, less exact noise.

Legend: T rows, V tokens of a tile.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor


class Draw(NamedTuple):
    """The parameters that turn scores into totals. They are on the device, so one recorded graph serves every request.

    Args:
        temperature: float32 [1], the divisor of scores.
        seed_mix: int64 [1] bits of splitmix64(seed); None for greedy, which adds no noise.
        positions: int32 [rows] of the pass's rows in the text; the noise is that of the token after a row.
        column_ids: int32 [columns], rising: the target's tokens that the columns of a draft's scores stand for; None:
            column 0 is token 0, and so on.
    """

    temperature: Tensor
    seed_mix: Tensor | None
    positions: Tensor
    column_ids: Tensor | None = None


@triton.jit
def totals_of(scores_TV, columns_V, vocab_size, rows_T, is_row_T, draw, IS_TOPK: tl.constexpr):
    """total[t, v] = score[t, v] / temperature + g(seed, position[t] + 1, column_ids[v]): [T, V] float32.

    rows_T are rows of the pass. Without column_ids, column v is token v.
    """
    totals_TV = tl.div_rn(scores_TV, tl.broadcast_to(tl.load(draw.temperature), scores_TV.shape))
    if draw.seed_mix is not None:
        tokens_V = columns_V
        if draw.column_ids is not None:
            tokens_V = tl.load(draw.column_ids + columns_V, mask=columns_V < vocab_size, other=0)
        low_T, high_T = row_keys(draw.seed_mix, tl.load(draw.positions + rows_T, mask=is_row_T, other=0) + 1)
        if IS_TOPK:
            totals_TV += quick_noise(low_T[:, None], high_T[:, None], tokens_V[None, :])
        else:
            totals_TV += exact_noise(low_T[:, None], high_T[:, None], tokens_V[None, :])
    return totals_TV


@triton.jit
def splitmix64(value):
    """One step of the SplitMix64 generator (Steele, Lea, Flood, 2014), of uint64."""
    value = value + 0x9E3779B97F4A7C15
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB
    return value ^ (value >> 31)


@triton.jit
def row_keys(seed_mix, positions_T):
    """The keys of the noise at each position: a low and a high half, uint32."""
    mix = tl.load(seed_mix).to(tl.uint64, bitcast=True)
    keys_T = splitmix64(positions_T.to(tl.uint64) ^ mix)
    return keys_T.to(tl.uint32), (keys_T >> 32).to(tl.uint32)


@triton.jit
def mix32(bits):
    """Mix uint32: a bijection with low bias (C. Wellons' hash prospector, "lowbias32")."""
    bits = (bits ^ (bits >> 16)) * 0x21F0AAAD
    bits = (bits ^ (bits >> 15)) * 0xD35A2D97
    return bits ^ (bits >> 15)


@triton.jit
def uniform_bits(low, high, tokens):
    """32 uniform bits: the noise is that of u = (bits + 1/2) / 2^32, `bits` being uint32."""
    hashed = tokens.to(tl.uint32) * 0x9E3779B1
    return mix32(mix32(hashed + low) ^ high) ^ 0x80000000


@triton.jit
def exact_noise(low, high, tokens):
    """-log(-log(u)) as in forerun.sampling.noise: logarithms in float64, rounded once."""
    bits = uniform_bits(low, high, tokens)
    uniform = (bits.to(tl.float64) + 0.5) * 2.3283064365386963e-10
    return (-tl.log(-tl.log(uniform))).to(tl.float32)


@triton.jit
def quick_noise(low, high, tokens):
    """-log(-log(u)) to about 3e-6, for guesses: entirely in float32, for which a GPU has far more units.

    For u near 1, it takes the logarithm of 1 - (1 - u) rounded to float32 and corrects it for the rounding, since 1 - u
    is known exactly. Source: W. Kahan, for log1p.
    """
    bits = uniform_bits(low, high, tokens)
    is_low = bits < 0x80000000
    to_end = (tl.where(is_low, bits, ~bits).to(tl.float32) + 0.5) * 2.3283064365386963e-10  # u or 1 - u
    uniform = tl.where(is_low, to_end, 1.0 - to_end)
    rounded = 1.0 - uniform
    is_one = uniform == 1.0
    put_right = tl.where(is_low, 1.0, to_end / tl.where(is_one, 1.0, rounded))
    negative_log = tl.where(is_one, to_end, -tl.log(uniform) * put_right)
    return -tl.log(negative_log)
