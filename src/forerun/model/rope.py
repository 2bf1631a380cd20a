"""Rotary embeddings: cosines and sines of every position, with the scaling that the checkpoint names.

Legend: P positions, D head size.
"""

import math

import torch
from torch import Tensor

from forerun.core.model_spec import RopeSpec


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> Tensor:
    """[D / 2] float32 radians per position.

    Sources: arXiv 2104.09864; Llama 3.1 for the "llama3" blend; arXiv 2309.00071, section 3.2, for "yarn".
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.divisors:
        frequencies = frequencies / torch.tensor(rope.divisors)
    match rope.kind:
        case "default":
            return frequencies
        case "linear":
            return frequencies / rope.factor
        case "llama3":
            return blend_llama3(frequencies, rope)
        case "yarn":
            return blend_yarn(frequencies, rope)


def blend_llama3(frequencies: Tensor, rope: RopeSpec) -> Tensor:
    """Divide low frequencies by the factor, keep high ones, and blend those between by their wavelength."""
    wavelengths = 2 * math.pi / frequencies
    smooth = rope.original_max_positions / wavelengths - rope.low_freq_factor
    share_kept = (smooth / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0.0, 1.0)
    return (1 - share_kept) * frequencies / rope.factor + share_kept * frequencies


def blend_yarn(frequencies: Tensor, rope: RopeSpec) -> Tensor:
    """Divide low frequencies by the factor, keep high ones, and blend those between by their dimension."""
    head_dim = 2 * len(frequencies)

    def dimension_of(num_rotations: float) -> float:
        """The dimension that makes this many rotations in the original context."""
        positions_per_radian = rope.original_max_positions / (num_rotations * 2 * math.pi)
        return head_dim * math.log(positions_per_radian) / (2 * math.log(rope.theta))

    low, high = dimension_of(rope.beta_fast), dimension_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low or 0.001  # not 0 where both bounds are equal
    share_divided = ((torch.arange(len(frequencies)).float() - low) / width).clamp(0.0, 1.0)
    return share_divided * frequencies / rope.factor + (1 - share_divided) * frequencies


def rope_table(rope: RopeSpec, head_dim: int, num_positions: int, *, dtype: torch.dtype, device: str) -> Tensor:
    """[P, 2, D]: cos and sin of every position, times the attention factor.

    The first half of sin is negated, see `backends.torch.reference_ops.rotate`.
    """
    angles = torch.outer(torch.arange(num_positions).float(), inverse_frequencies(rope, head_dim))
    cos, sin = rope.attention_factor * angles.cos(), rope.attention_factor * angles.sin()
    return torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), 1).to(device, dtype)
