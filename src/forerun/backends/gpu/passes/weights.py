"""Weights as the kernels read them.

Legend: O output features, I input features, G groups of inputs, B blocks of inputs, J words of a block.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from forerun.backends.gpu.passes.tiles import Tiles, choose_tiles
from forerun.core.model_spec import WeightFormat
from forerun.model.weights import DenseWeight, Int4Weight, Int8Weight, Weight

NIBBLES: Final = 8  # int4 weights of a word
ZERO_BITS: Final = 4  # of a scale's word, taken by its zero


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedLinear:
    """A weight [O, I] and how programs divide it.

    Args:
        values: of plain weights [O, I] in the dtype that is computed in, the checkpoint's own tensor; of int8, int8
            [O, I]; of int4, int32 [B, O, J]: nibble i of word j of a block is its input i * J + j, so that the words of
            a block lie together and each nibble gives consecutive inputs.
        scales: None; of int8, float32 [O]; of int4, int32 [G, O], a float32 whose last four bits are the group's zero.
            They are the last of 24 that a weight of 4 bits could ever feel, and so a group has one number to load.
        bias: float32 [O] or None.
        group_size: inputs of a group of int4; else 0.
        paired: rows of gates and, below them, as many of ups; a program does as many of the one as of the other.
    """

    values: Tensor
    scales: Tensor | None
    bias: Tensor | None
    num_out: int
    num_in: int
    group_size: int
    weight_format: WeightFormat
    tiles: Tiles
    paired: bool


def pack(
    weight: Weight,
    bias_O: Tensor | None,
    *,
    compute: torch.dtype,
    paired: bool = False,
    head_dim: int | None = None,
) -> PackedLinear:
    """A weight for the kernels here; `head_dim` if it is that of queries, keys and values: a program does a head."""
    weight_format: WeightFormat = "plain"
    if not isinstance(weight, DenseWeight):
        weight_format = "int8" if isinstance(weight, Int8Weight) else "int4"
    num_out, num_in = weight.values_OI.shape
    assert not paired or num_out % 2 == 0, num_out
    tiles = choose_tiles(num_out, num_in, weight_format=weight_format, compute=compute, head_dim=head_dim)
    scales, group_size = None, 0
    match weight:
        case DenseWeight():
            values = weight.values_OI.to(compute).contiguous()
        case Int8Weight():
            values, scales = weight.values_OI.contiguous(), weight.scales_O
        case Int4Weight():
            values, scales = pack_words(weight, tiles.block_in), pack_scales(weight, tiles.block_in)
            group_size = weight.group_size
    return PackedLinear(
        values=values,
        scales=scales,
        bias=None if bias_O is None else bias_O.float().contiguous(),
        num_out=num_out,
        num_in=num_in,
        group_size=group_size,
        weight_format=weight_format,
        tiles=tiles,
        paired=paired,
    )


def pack_words(weight: Int4Weight, block_in: int) -> Tensor:
    """[B, O, J]"""
    num_out, num_in = weight.values_OI.shape
    num_words = block_in // NIBBLES
    padded_OI = functional.pad(weight.values_OI, (0, -num_in % block_in))
    nibbles_OBNJ = padded_OI.view(num_out, -1, NIBBLES, num_words)
    words_OBJ = torch.zeros_like(nibbles_OBNJ[:, :, 0], dtype=torch.int32)
    for place in range(NIBBLES):
        words_OBJ |= nibbles_OBNJ[:, :, place].int() << (4 * place)
    return words_OBJ.transpose(0, 1).contiguous()


def pack_scales(weight: Int4Weight, block_in: int) -> Tensor:
    """[G, O], rounded to what the zeros leave of them; groups that no input has are zeros."""
    zeros_OG = weight.zeros_OG.int()
    step = 1 << ZERO_BITS
    words_OG = ((weight.scales_OG.contiguous().view(torch.int32) + step // 2) & -step) | zeros_OG
    missing = -words_OG.shape[1] % (block_in // weight.group_size)
    return functional.pad(words_OG, (0, missing)).t().contiguous()
