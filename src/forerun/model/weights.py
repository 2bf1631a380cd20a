"""Types of weights: dense, integer codes with scales, or the blocks of a GGUF file; and parts of them.

Legend: O output features, I input features, G groups of consecutive input features, B bytes of a row of blocks,
V vocabulary, H hidden size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import torch
from torch import Tensor

from forerun.model.gguf_block_types import BLOCKS, BlockType

Shape: TypeAlias = tuple[int, int]  # output features, input features


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Elements `start` to `stop` - 1 of a dimension, followed by `padding` zeros."""

    start: int
    stop: int
    padding: int = 0

    @property
    def num_real(self) -> int:
        """Number of elements without the padding."""
        return self.stop - self.start

    @property
    def size(self) -> int:
        """Number of elements with the padding."""
        return self.num_real + self.padding

    def scaled(self, factor: int, offset: int = 0) -> "Piece":
        """The same piece in smaller elements, `factor` for each of these, counted from `offset`."""
        return Piece(
            start=offset + factor * self.start, stop=offset + factor * self.stop, padding=factor * self.padding
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a linear layer's weight; by default all of it.

    Args:
        rows: outputs: a list of pieces for each stored weight that the layer is made of (for example queries, keys and
            values), counted from the layer's first output. None: all outputs.
        columns: inputs; None: all.
    """

    rows: Sequence[Sequence[Piece]] | None = None
    columns: Piece | None = None


WHOLE: Final = Part()


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
        scales_O: float32 [O], finite, at least 0; 0 for an output whose weights are all 0.
        dtype: dtype of the weight before quantising; kernels that cannot multiply by int8 compute in it.
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
        scales_OG: float32 [O, G], finite; 0 for a group whose weights are all 0. G is ceil(I / group_size).
        zeros_OG: uint8 [O, G], from 0 to 15.
        group_size: input features of a group; the last group may be shorter.
        dtype: dtype of the weight before quantising; kernels that cannot multiply by int4 compute in it.
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
    """Rows of bytes still in their file, so that a kernel's layout can be made from the file without a copy in between.

    Args:
        places_O: int64 [O], offset of each row in the file; negative for a row of zeros.
        row_bytes: bytes of a row.
        read: reads them all, uint8 [O, row_bytes].
        tell: to be called by code that has read all the rows without `read`.
    """

    path: Path
    places_O: Tensor
    row_bytes: int
    read: Callable[[], Tensor]
    tell: Callable[[], None]


class BlockWeight:
    """Rows of blocks as in a GGUF file, see `model.gguf_blocks`.

    Args:
        dtype: kernels that cannot multiply by these codes compute in it.
        blocks_OB: uint8 [O, B]; a row is a whole number of blocks.
        rows: instead of `blocks_OB`: the blocks in their file, read when `blocks_OB` is first used.
    """

    def __init__(
        self,
        *,
        block_type: BlockType,
        dtype: torch.dtype = torch.float32,
        blocks_OB: Tensor | None = None,
        rows: RowsInFile | None = None,
    ) -> None:
        assert (blocks_OB is None) != (rows is None), "blocks are in memory or in a file"
        self.block_type = block_type
        self.dtype = dtype
        self.rows = rows
        self._blocks_OB = blocks_OB

    @property
    def blocks_OB(self) -> Tensor:  # noqa: N802  (a tensor, whose name ends with its shape)
        if self._blocks_OB is None:
            assert self.rows is not None, "blocks are in memory or in a file"
            self._blocks_OB = self.rows.read()
            self.rows = None
        return self._blocks_OB

    @property
    def shape(self) -> Shape:
        num_out, row_bytes = (
            self.blocks_OB.shape if self.rows is None else (len(self.rows.places_O), self.rows.row_bytes)
        )
        num_elements, num_bytes = BLOCKS[self.block_type]
        return num_out, row_bytes // num_bytes * num_elements

    def with_blocks(self, blocks_OB: Tensor) -> "BlockWeight":
        """Other blocks of the same type."""
        return BlockWeight(block_type=self.block_type, dtype=self.dtype, blocks_OB=blocks_OB)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StackedWeight:
    """Weights with the same inputs, stacked by outputs: queries, keys and values may have different formats."""

    parts: "tuple[DenseWeight | BlockWeight, ...]"

    @property
    def dtype(self) -> torch.dtype:
        return self.parts[0].dtype

    @property
    def shape(self) -> Shape:
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]


PlainWeight: TypeAlias = DenseWeight | Int8Weight | Int4Weight
Weight: TypeAlias = PlainWeight | BlockWeight | StackedWeight
Table: TypeAlias = DenseWeight | BlockWeight  # an embedding


class WeightSource(Protocol):
    """A model's weights by the names that its program uses.

    The source keeps no reference to a weight that it has returned, so that the weight can be freed once it is packed.
    """

    def table(self) -> Table:
        """The embedding [V, H]. The source keeps it, because a tied head is this same object."""

    def linear(self, name: str, part: Part = WHOLE) -> tuple[Weight, Tensor | None]:
        """A part of a linear layer's weight, and the bias [O] of its outputs."""

    def vector(self, name: str) -> Tensor:
        """The weight of a norm."""


def tensors_of(weight: PlainWeight) -> dict[str, Tensor]:
    """Values, scales and zeros by their field; the first dimension of each is O."""
    named = ((field.name, getattr(weight, field.name)) for field in fields(weight))
    return {name: tensor for name, tensor in named if isinstance(tensor, Tensor)}


def matrix_shape(values_OI: Tensor) -> Shape:
    num_out, num_in = values_OI.shape
    return num_out, num_in
