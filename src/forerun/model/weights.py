"""Weights as typed values: dense, or codes with scales.

Legend: O output features, I input features, G groups of consecutive input features, V vocabulary, H hidden size.
"""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DenseWeight:
    """A weight of a floating dtype, [O, I]."""

    values_OI: Tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.values_OI.dtype


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Int8Weight:
    """value * scale, with one scale for each output.

    Args:
        values_OI: int8 [O, I], from -127 to 127.
        scales_O: float32 [O], finite, at least 0; 0 for an output without any weight.
        dtype: of the weight before, in which a kernel without products of 8 bits computes.
    """

    values_OI: Tensor
    scales_O: Tensor
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Int4Weight:
    """(value - zero) * scale, with a scale and a zero for each group of an output. Source: AWQ (arXiv 2306.00978).

    Args:
        values_OI: uint8 [O, I], from 0 to 15, one value to a byte.
        scales_OG: float32 [O, G], finite, at least 0; 0 for a group without any weight. G is ceil(I / group_size).
        zeros_OG: uint8 [O, G], from 0 to 15.
        group_size: input features of a group; the last one may be shorter.
        dtype: of the weight before, in which a kernel without products of 4 bits computes.
    """

    values_OI: Tensor
    scales_OG: Tensor
    zeros_OG: Tensor
    group_size: int
    dtype: torch.dtype = torch.float32


Weight: TypeAlias = DenseWeight | Int8Weight | Int4Weight


class WeightSource(Protocol):
    """A model's weights by the names that its program uses.

    A weight is handed over once and is then no longer held here, so that it can go as soon as it is packed.
    """

    def table(self) -> Tensor:
        """The embedding, dense [V, H]; it stays here, since a head may share it."""

    def linear(self, name: str) -> tuple[Weight, Tensor | None]:
        """Weight and bias [O] of a linear layer."""

    def vector(self, name: str) -> Tensor:
        """The weight of a norm."""
