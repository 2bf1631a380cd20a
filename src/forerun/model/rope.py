"""Rotary embeddings: cosines and sines of every position, with the scaling that the checkpoint names.

Every kernel rotates dimension i of a head with dimension i + D / 2. Checkpoints with another rotation are converted by
these tables and by the order in which the rows of queries and keys are loaded: a pair that is not rotated has cosine 1
and sine 0, and if pairs are neighbours, or only the first dimensions are rotated, rows are reordered (`head_order`).
Products of queries and keys do not depend on the order of dimensions.

Legend: P positions, D head size.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from forerun.core.model_spec import ModelSpec, RopeSpec


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> Tensor:
    """[D / 2] float32 radians per position, 0 for pairs that are not rotated.

    Sources: arXiv 2104.09864; Llama 3.1 for the "llama3" blend; arXiv 2309.00071, section 3.2, for "yarn".
    """
    rotated_dims = rope.rotated_dims or head_dim
    base_dim = head_dim if rope.kind == "proportional" else rotated_dims
    powers = rope.theta ** (torch.arange(0, rotated_dims, 2, dtype=torch.int64).float() / base_dim)
    if rope.kind == "longrope":
        frequencies = 1.0 / (torch.tensor(rope.divisors) * powers)
    else:
        frequencies = 1.0 / powers
        if rope.divisors:
            frequencies = frequencies / torch.tensor(rope.divisors)
    still = torch.zeros((head_dim - rotated_dims) // 2)
    return torch.cat((scaled_frequencies(rope, frequencies), still))


def scaled_frequencies(rope: RopeSpec, frequencies: Tensor) -> Tensor:
    """The frequencies of the rotated pairs, with the scaling of the rope's kind."""
    match rope.kind:
        case "default" | "longrope":
            assert not rope.long_divisors, "the length of texts decides these frequencies, see RopeSpec.for_length"
            return frequencies
        case "linear" | "proportional":
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

    low = dimension_of(rope.beta_fast)
    high = dimension_of(rope.beta_slow)
    if rope.truncate:
        low = math.floor(low)
        high = math.ceil(high)
    low = max(low, 0)
    high = min(high, head_dim - 1)
    width = high - low or 0.001  # not 0 where both bounds are equal
    share_divided = ((torch.arange(len(frequencies)).float() - low) / width).clamp(0.0, 1.0)
    return share_divided * frequencies / rope.factor + (1 - share_divided) * frequencies


def rope_table(rope: RopeSpec | None, head_dim: int, num_positions: int, *, dtype: torch.dtype, device: str) -> Tensor:
    """[P, 2, D]: cos and sin of every position, times the attention factor; without a rope, 1 and 0.

    The first half of sin is negated, see `backends.torch.reference_ops.rotate`. Pairs without rotation keep their size.
    """
    rope = rope or RopeSpec(rotated_dims=0)
    num_turning = head_dim // 2 if rope.rotated_dims is None else rope.rotated_dims // 2
    frequencies = torch.zeros(head_dim // 2) if num_turning == 0 else inverse_frequencies(rope, head_dim)
    angles = torch.outer(torch.arange(num_positions).float(), frequencies)
    factors = torch.ones(head_dim // 2)
    factors[:num_turning] = rope.attention_factor
    cos = factors * angles.cos()
    sin = factors * angles.sin()
    return torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), 1).to(device, dtype)


def query_scales(spec: ModelSpec, num_positions: int, *, dtype: torch.dtype, device: str) -> Tensor | None:
    """[P]: the factor of every query by its position, after the rotation; None if all are 1.

    Source of the growth: Llama 4; Ministral 3 uses it too.
    """
    rope = spec.rope
    factor = spec.query_factor
    positions = torch.arange(num_positions, dtype=torch.int64)
    growth = 1 + rope.query_growth * torch.log(1 + torch.floor(positions / rope.original_max_positions))
    scales = factor * growth.to(torch.float64)
    return None if bool((scales == 1.0).all()) else scales.to(device, dtype)


def head_order(rotated_dims: int, head_dim: int, *, is_interleaved: bool) -> Sequence[int]:
    """The stored dimension of a head for each of its dimensions as the kernels rotate them; empty if they are equal.

    Args:
        rotated_dims: how many dimensions, from the first, are rotated.
        is_interleaved: dimension 2 i is rotated with 2 i + 1; else dimension i with i + rotated_dims / 2.
    """
    rotated = list(range(rotated_dims))
    rest = list(range(rotated_dims, head_dim))
    half = rotated_dims // 2
    left = len(rest) // 2
    first, second = (rotated[::2], rotated[1::2]) if is_interleaved else (rotated[:half], rotated[half:])
    order = [*first, *rest[:left], *second, *rest[left:]]
    return () if order == sorted(order) else order
