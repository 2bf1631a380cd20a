"""Rows and columns of typed weights, padded with zeros.

Legend: O output features, I input features, G groups of consecutive input features, B bytes of a row of blocks.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import gcd
from typing import Any

import torch
from torch import Tensor

from forerun.model.gguf_block_types import BLOCKS
from forerun.model.quantise import as_plain
from forerun.model.weights import (
    BlockWeight,
    DenseWeight,
    Int4Weight,
    Int8Weight,
    Part,
    Piece,
    StackedWeight,
    Weight,
    tensors_of,
)


def take_part(weight: Weight, part: Part) -> Weight:
    """A part of a weight; the weight itself if the part is all of it."""
    if part.rows is not None:
        weight = take_rows(weight, part.rows)
    return weight if part.columns is None else take_columns(weight, part.columns)


def take_bias(bias_O: Tensor | None, part: Part) -> Tensor | None:
    """The bias of a part's outputs."""
    if bias_O is None or part.rows is None:
        return bias_O
    return take(bias_O, [piece for section in part.rows for piece in section])


def take(values: Tensor, pieces: Sequence[Piece], dim: int = 0) -> Tensor:
    """These pieces of a tensor side by side, copied, because a view would keep the whole tensor in memory."""
    parts = []
    for piece in pieces:
        parts.append(values.narrow(dim, piece.start, piece.num_real))
        if piece.padding:
            shape = list(values.shape)
            shape[dim] = piece.padding
            parts.append(values.new_zeros(shape))
    return torch.cat(parts, dim)


def take_rows(weight: Weight, sections: Sequence[Sequence[Piece]]) -> Weight:
    """Some outputs of a weight.

    Args:
        sections: as `Part.rows`.
    """
    rows = [piece for section in sections for piece in section]
    match weight:
        case BlockWeight():
            return weight.with_blocks(take(weight.blocks_OB, rows))
        case StackedWeight():
            raise AssertionError("a stacked weight is read in parts and cannot be cut by rows")
        case _:
            taken: dict[str, Any] = {name: take(tensor, rows) for name, tensor in tensors_of(weight).items()}
            return replace(weight, **taken)


def take_columns(weight: Weight, piece: Piece) -> Weight:
    """Some inputs of a weight. Every element keeps its exact value: parts that divide a group each get its scale,
    and if a part would cut through a block, it is stored as plain values instead of codes."""
    match weight:
        case DenseWeight() | Int8Weight():
            return replace(weight, values_OI=take(weight.values_OI, [piece], 1))
        case Int4Weight():
            return take_grouped(weight, piece)
        case BlockWeight():
            num_elements, num_bytes = BLOCKS[weight.block_type]
            numbers = (piece.start, piece.stop, piece.padding)
            if any(number % num_elements for number in numbers):
                return DenseWeight(values_OI=take(as_plain(weight), [piece], 1))
            start, stop, padding = (number // num_elements * num_bytes for number in numbers)
            return weight.with_blocks(take(weight.blocks_OB, [Piece(start=start, stop=stop, padding=padding)], 1))
        case StackedWeight():
            raise AssertionError("a stacked weight cannot be cut by columns")


def take_grouped(weight: Int4Weight, piece: Piece) -> Int4Weight:
    """Some inputs of an int4 weight; if the part begins within a group, all groups are split so that it does not."""
    group_size = gcd(piece.start, weight.group_size)
    repeats = weight.group_size // group_size
    num_groups = -(-piece.num_real // group_size)
    num_all = -(-piece.size // group_size)
    groups = Piece(
        start=piece.start // group_size, stop=piece.start // group_size + num_groups, padding=num_all - num_groups
    )
    values_OI = take(weight.values_OI, [piece], 1)
    zeros_OG = take(weight.zeros_OG.repeat_interleave(repeats, 1), [groups], 1)
    if num_groups:  # the padding of the last real group must mean 0, too
        values_OI[:, piece.num_real : num_groups * group_size] = zeros_OG[:, num_groups - 1 : num_groups]
    return replace(
        weight,
        values_OI=values_OI,
        scales_OG=take(weight.scales_OG.repeat_interleave(repeats, 1), [groups], 1),
        zeros_OG=zeros_OG,
        group_size=group_size,
    )
