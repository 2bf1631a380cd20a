"""Rows and columns of typed weights, padded with zeros that stand for nothing.

Legend: O output features, I input features, G groups of consecutive input features, B bytes of a row of blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

import torch
from torch import Tensor

from forerun.model.blocks import BLOCKS
from forerun.model.quantise import as_plain
from forerun.model.weights import BlockWeight, DenseWeight, Int4Weight, Int8Weight, StackedWeight, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Elements `start` to `stop` - 1 of a dimension, and `padding` zeros behind them."""

    start: int
    stop: int
    padding: int = 0

    def scaled(self, factor: int, offset: int = 0) -> "Piece":
        """The same of elements that are `factor` each, the first one at `offset`."""
        return Piece(
            start=offset + factor * self.start, stop=offset + factor * self.stop, padding=factor * self.padding
        )


def take(values: Tensor, pieces: Sequence[Piece], dim: int = 0) -> Tensor:
    """These pieces of a tensor side by side, in memory of their own: else a part would keep the whole one there."""
    parts = []
    for piece in pieces:
        parts.append(values.narrow(dim, piece.start, piece.stop - piece.start))
        if piece.padding:
            shape = list(values.shape)
            shape[dim] = piece.padding
            parts.append(values.new_zeros(shape))
    return torch.cat(parts, dim)


def take_rows(weight: Weight, sections: Sequence[Sequence[Piece]]) -> Weight:
    """Outputs of a weight.

    Args:
        sections: the pieces of each of the weights that make up this one, queries, keys and values say; counted from
            the first output of all.
    """
    rows = [piece for section in sections for piece in section]
    match weight:
        case DenseWeight():
            return DenseWeight(values_OI=take(weight.values_OI, rows))
        case Int8Weight():
            return replace(weight, values_OI=take(weight.values_OI, rows), scales_O=take(weight.scales_O, rows))
        case Int4Weight():
            return replace(
                weight,
                values_OI=take(weight.values_OI, rows),
                scales_OG=take(weight.scales_OG, rows),
                zeros_OG=take(weight.zeros_OG, rows),
            )
        case BlockWeight():
            return replace(weight, blocks_OB=take(weight.blocks_OB, rows))
        case StackedWeight():
            assert len(weight.parts) == len(sections), f"{len(weight.parts)} parts, {len(sections)} sections"
            parts: list[DenseWeight | BlockWeight] = []
            first = 0
            for part, section in zip(weight.parts, sections, strict=True):
                parts.append(take_part(part, section, first))
                first += part.shape[0]
            return StackedWeight(parts=tuple(parts))


def take_part(part: DenseWeight | BlockWeight, section: Sequence[Piece], first: int) -> DenseWeight | BlockWeight:
    """Outputs of one of stacked weights, whose own first output is number `first`."""
    rows = [piece.scaled(1, -first) for piece in section]
    if isinstance(part, DenseWeight):
        return DenseWeight(values_OI=take(part.values_OI, rows))
    return replace(part, blocks_OB=take(part.blocks_OB, rows))


def take_columns(weight: Weight, piece: Piece) -> Weight:
    """Inputs of a weight. What scales several inputs is shared by the parts that they fall into, so that every element
    keeps its value to the bit; of blocks that would be cut, the values are kept and not the codes."""
    match weight:
        case DenseWeight():
            return DenseWeight(values_OI=take(weight.values_OI, [piece], 1))
        case Int8Weight():
            return replace(weight, values_OI=take(weight.values_OI, [piece], 1))
        case Int4Weight():
            return take_grouped(weight, piece)
        case BlockWeight():
            num_elements, num_bytes = BLOCKS[weight.block_type]
            if any(number % num_elements for number in (piece.start, piece.stop, piece.padding)):
                return DenseWeight(values_OI=take(as_plain(weight), [piece], 1))
            blocks = Piece(
                start=piece.start // num_elements,
                stop=piece.stop // num_elements,
                padding=piece.padding // num_elements,
            )
            return replace(weight, blocks_OB=take(weight.blocks_OB, [blocks.scaled(num_bytes)], 1))
        case StackedWeight():
            raise AssertionError("weights that are stacked are divided by outputs")


def take_grouped(weight: Int4Weight, piece: Piece) -> Int4Weight:
    """The same of groups; where a part begins within one, all groups become so small that it begins with one."""
    group_size = gcd(piece.start, weight.group_size)
    repeats = weight.group_size // group_size
    num_groups = -(-(piece.stop - piece.start) // group_size)
    num_all = -(-(piece.stop - piece.start + piece.padding) // group_size)
    groups = Piece(
        start=piece.start // group_size, stop=piece.start // group_size + num_groups, padding=num_all - num_groups
    )
    return replace(
        weight,
        values_OI=take(weight.values_OI, [piece], 1),
        scales_OG=take(weight.scales_OG.repeat_interleave(repeats, 1), [groups], 1),
        zeros_OG=take(weight.zeros_OG.repeat_interleave(repeats, 1), [groups], 1),
        group_size=group_size,
    )
