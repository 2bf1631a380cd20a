"""Weights as typed values: dense, codes with scales, or a file's own blocks of codes.

Legend: O output features, I input features, G groups of consecutive input features, B bytes of a row of blocks,
V vocabulary, H hidden size.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from forerun.model.block_types import BLOCKS, BlockType
from forerun.model.part import WHOLE, Part

Shape: TypeAlias = tuple[int, int]  # output features, input features


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DenseWeight:
    """A weight of a floating dtype, [O, I]."""

    values_OI: Tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.values_OI.dtype

    @property
    def shape(self) -> Shape:
        return matrix_shape(self.values_OI)


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

    @property
    def shape(self) -> Shape:
        return matrix_shape(self.values_OI)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Int4Weight:
    """(value - zero) * scale, with a scale and a zero for each group of an output. Source: AWQ (arXiv 2306.00978).

    Args:
        values_OI: uint8 [O, I], from 0 to 15, one value to a byte.
        scales_OG: float32 [O, G], finite; 0 for a group without any weight. G is ceil(I / group_size).
        zeros_OG: uint8 [O, G], from 0 to 15.
        group_size: input features of a group; the last one may be shorter.
        dtype: of the weight before, in which a kernel without products of 4 bits computes.
    """

    values_OI: Tensor
    scales_OG: Tensor
    zeros_OG: Tensor
    group_size: int
    dtype: torch.dtype = torch.float32

    @property
    def shape(self) -> Shape:
        return matrix_shape(self.values_OI)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowsInFile:
    """Rows of bytes that are still in their file, for whoever lays them out anew without a copy in between.

    Args:
        places_O: int64 [O], where each row begins; negative for a row of zeros.
        row_bytes: of each.
        read: reads them all, uint8 [O, row_bytes].
        tell: hears that somebody else has read them all.
    """

    path: Path
    places_O: Tensor
    row_bytes: int
    read: Callable[[], Tensor]
    tell: Callable[[], None]


class BlockWeight:
    """Rows of blocks as a GGUF file holds them, see `model.blocks`.

    Args:
        blocks_OB: uint8 [O, B]; a row is a whole number of blocks. Given `rows` instead, they are read when they are
            asked for.
        dtype: in which a kernel without products of such codes computes.
    """

    def __init__(
        self, *, block_type: BlockType, dtype: torch.dtype = torch.float32, blocks_OB: Tensor | None = None,
        rows: RowsInFile | None = None,
    ) -> None:  # fmt: skip
        assert (blocks_OB is None) != (rows is None), "blocks are in memory or in a file"
        self.block_type, self.dtype, self.rows = block_type, dtype, rows
        self._blocks_OB = blocks_OB

    @property
    def blocks_OB(self) -> Tensor:  # noqa: N802  (a tensor, whose name ends with its shape)
        if self._blocks_OB is None:
            assert self.rows is not None, "blocks are in memory or in a file"
            self._blocks_OB, self.rows = self.rows.read(), None
        return self._blocks_OB

    @property
    def shape(self) -> Shape:
        num_out, row_bytes = (
            self.blocks_OB.shape if self.rows is None else (len(self.rows.places_O), self.rows.row_bytes)
        )
        num_elements, num_bytes = BLOCKS[self.block_type]
        return num_out, row_bytes // num_bytes * num_elements

    def with_blocks(self, blocks_OB: Tensor) -> "BlockWeight":
        """Others of the same kind."""
        return BlockWeight(block_type=self.block_type, dtype=self.dtype, blocks_OB=blocks_OB)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StackedWeight:
    """Weights of the same inputs, one under another: queries, keys and values need not share a format."""

    parts: "tuple[DenseWeight | BlockWeight, ...]"

    @property
    def dtype(self) -> torch.dtype:
        return self.parts[0].dtype

    @property
    def shape(self) -> Shape:
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]


Weight: TypeAlias = DenseWeight | Int8Weight | Int4Weight | BlockWeight | StackedWeight
Table: TypeAlias = DenseWeight | BlockWeight  # an embedding


class WeightSource(Protocol):
    """A model's weights by the names that its program uses.

    A weight is handed over once and is then no longer held here, so that it can go as soon as it is packed.
    """

    def table(self) -> Table:
        """The embedding [V, H]; it stays here, since a head may share it. Such a head is this very object."""

    def linear(self, name: str, part: Part = WHOLE) -> tuple[Weight, Tensor | None]:
        """A part of a linear layer's weight, and the bias [O] of its outputs."""

    def vector(self, name: str) -> Tensor:
        """The weight of a norm."""


def matrix_shape(values_OI: Tensor) -> Shape:
    num_out, num_in = values_OI.shape
    return num_out, num_in
