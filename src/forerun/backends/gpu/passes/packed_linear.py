"""Weights as the kernels read them, and what kernels are compiled for.

Legend: O output features, I input features, R some of the outputs, G groups of inputs, S spans of inputs (SPAN_INPUTS),
N nibbles of a word, J words of a span.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from forerun.backends.gpu.language import ROW_TILE, launch_options
from forerun.backends.gpu.passes.dequantise import BFLOAT16_UNIT, SPAN_INPUTS
from forerun.backends.gpu.passes.tiles import RowBlock, Tiles, choose_rows, choose_tiles
from forerun.core.model_spec import WeightFormat
from forerun.model.quantise import as_int4, as_plain, blocks
from forerun.model.weights import BlockWeight, DenseWeight, Int4Weight, Int8Weight, StackedWeight, Weight

NIBBLES: Final = 8  # int4 weights, or zeros, in a word.
Multipliable: TypeAlias = DenseWeight | Int8Weight | Int4Weight


class LinearWeight(NamedTuple):
    """A weight [O, I] in the memory that kernels read.

    Args:
        matrix: of plain weights [O, I] in the dtype that is computed in, the checkpoint's own tensor; of int8, int8
            [O, I]; of int4, int32 [S, O, J] as `pack_words` has it.
        scales: None; of int8, float32 [O] `in_units`; of int4, float32 [S, O, groups of a span] of `pack_scales`.
        zeros: None; of int4, int32 [ceil(all groups / 8), O]: group 2 i + j of eight has the bits from 4 i + 16 j on.
        bias: float32 [O] or None.
    """

    matrix: Tensor
    scales: Tensor | None
    zeros: Tensor | None
    bias: Tensor | None


class LinearShape(NamedTuple):
    """What a kernel that multiplies by a weight is compiled for.

    Args:
        group_size: inputs of a group of int4; else 0.
        block_out, block_in: outputs of a program, and its inputs at a time.
        step_in: inputs of int4 weights at a time, a part of block_in.
        num_splits: programs that share the inputs of an output.
        num_stages: steps that are under way at a time, the one at work included.
        num_row_tiles: tiles of ROW_TILE rows in a program, a power of two.
    """

    weight_format: WeightFormat
    num_in: int
    num_out: int
    group_size: int
    block_out: int
    block_in: int
    step_in: int
    num_splits: int
    num_stages: int
    num_row_tiles: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceLinear:
    """A weight [O, I] and how programs divide it.

    Args:
        group_size: inputs of a group of int4; else 0.
        compute: the dtype of the rows.
        paired: rows of gates and, below them, as many of ups; a program does as many of the one as of the other.
    """

    weight: LinearWeight
    num_out: int
    num_in: int
    group_size: int
    weight_format: WeightFormat
    compute: torch.dtype
    tiles: Tiles
    paired: bool

    @property
    def num_tiles(self) -> int:
        """Tiles of outputs, and so partial sums of squares that `linear_add` writes for a row."""
        return -(-self.num_out // self.tiles.block_out)

    def grid(self, num_rows: int) -> tuple[int, int, int]:
        """Blocks of rows, which share weights and so come first; tiles of outputs; splits of inputs."""
        rows = self.rows_of_program(num_rows)
        return -(-num_rows // (rows.num_row_tiles * ROW_TILE)), self.num_tiles, self.tiles.num_splits

    def rows_of_program(self, num_rows: int) -> RowBlock:
        """How a program divides the rows of a pass."""
        return choose_rows(
            self.tiles, num_rows, weight_format=self.weight_format, compute=self.compute, group_size=self.group_size
        )

    def options(self, num_rows: int, overlaps: bool) -> dict[str, object]:
        """How a kernel that multiplies this many rows by this weight is launched, and what it is compiled for."""
        rows, tiles = self.rows_of_program(num_rows), self.tiles
        shape = LinearShape(
            self.weight_format, self.num_in, self.num_out, self.group_size, tiles.block_out, tiles.block_in,
            rows.step_in, tiles.num_splits, rows.num_stages, rows.num_row_tiles,
        )  # fmt: skip
        options = launch_options(num_warps=rows.num_warps, num_stages=rows.num_stages, overlaps=overlaps)
        return {"SHAPE": shape, "OVERLAPS": overlaps, **options}


def pack(
    weight: Weight, bias_O: Tensor | None, *, compute: torch.dtype, paired: bool = False, head_dim: int | None = None
) -> DeviceLinear:
    """A weight for the kernels here; `head_dim` if it is that of queries, keys and values: a program does a head."""
    weight = multipliable(weight)
    weight_format = format_of(weight)
    num_out, num_in = weight.shape
    assert not paired or num_out % 2 == 0, num_out
    tiles = choose_tiles(num_out, num_in, weight_format=weight_format, compute=compute, head_dim=head_dim)
    scales, zeros, group_size = None, None, 0
    match weight:
        case DenseWeight():
            matrix = weight.values_OI.to(compute).contiguous()
        case Int8Weight():
            matrix, scales = weight.values_OI.contiguous(), in_units(weight.scales_O, compute)
        case Int4Weight():
            matrix, scales, zeros = pack_words(weight), pack_scales(weight, compute), pack_zeros(weight)
            group_size = weight.group_size
            assert 16 <= group_size <= SPAN_INPUTS and SPAN_INPUTS % group_size == 0, (
                f"groups of {group_size} inputs are not for these kernels"
            )
    return DeviceLinear(
        weight=LinearWeight(matrix, scales, zeros, None if bias_O is None else bias_O.float().contiguous()),
        num_out=num_out,
        num_in=num_in,
        group_size=group_size,
        weight_format=weight_format,
        compute=compute,
        tiles=tiles,
        paired=paired,
    )


def multipliable(weight: Weight) -> Multipliable:
    """The same values in a format of these kernels: Q4_0 as int4; other blocks have minima, or scales by the group, and
    become plain."""
    match weight:
        case BlockWeight(block_type="Q4_0"):
            return as_int4(weight)
        case BlockWeight() | StackedWeight():
            return DenseWeight(values_OI=as_plain(weight))
        case _:
            return weight


def format_of(weight: Multipliable) -> WeightFormat:
    """The name of a weight's format."""
    match weight:
        case DenseWeight():
            return "plain"
        case Int8Weight():
            return "int8"
        case Int4Weight():
            return "int4"


def pack_words(weight: Int4Weight) -> Tensor:
    """int32 [S, O, J], arranged so that a thread finds what it multiplies in four words that lie together.

    Input 16 (4 w + n) + 8 p + 2 t + h of a span is nibble n of half h of word 4 t + 2 p + w. Filled by a few outputs at
    a time: all that is between codes and words takes several times as much.
    """
    num_out, num_in = weight.values_OI.shape
    num_spans, num_words = -(-num_in // SPAN_INPUTS), SPAN_INPUTS // NIBBLES
    words_SOJ = torch.empty(num_spans, num_out, num_words, dtype=torch.int32, device=weight.values_OI.device)
    for rows in blocks(weight.values_OI):
        padded_RI = functional.pad(weight.values_OI[rows], (0, -num_in % SPAN_INPUTS))
        # An input's number is span, w, n, p, t, h; a nibble's place span, t, p, w, h, n.
        digits = padded_RI.view(-1, num_spans, 2, NIBBLES // 2, 2, 4, 2)
        nibbles_SRJN = digits.permute(1, 0, 5, 4, 2, 6, 3).reshape(num_spans, -1, num_words, NIBBLES).int()
        words_SRJ = nibbles_SRJN[..., 0]
        for place in range(1, NIBBLES):
            words_SRJ |= nibbles_SRJN[..., place] << (4 * place)
        words_SOJ[:, rows] = words_SRJ
    return words_SOJ


def pack_scales(weight: Int4Weight, compute: torch.dtype) -> Tensor:
    """[S, O, groups of a span], `in_units`; those of groups that no input has are 0."""
    num_out, groups = len(weight.scales_OG), SPAN_INPUTS // weight.group_size
    scales_OG = functional.pad(weight.scales_OG, (0, -weight.scales_OG.shape[1] % groups))
    return in_units(scales_OG.view(num_out, -1, groups).transpose(0, 1).contiguous(), compute)


def in_units(scales: Tensor, compute: torch.dtype) -> Tensor:
    """Scales for the units of unpacked values."""
    return scales / BFLOAT16_UNIT if compute == torch.bfloat16 else scales


def pack_zeros(weight: Int4Weight) -> Tensor:
    """int32 [ceil(G / 8), O]: even groups in the lower halves, odd ones in the upper."""
    num_groups = weight.zeros_OG.shape[1]
    zeros_OGN = functional.pad(weight.zeros_OG, (0, -num_groups % NIBBLES)).view(len(weight.zeros_OG), -1, NIBBLES)
    words_OG = torch.zeros_like(zeros_OGN[..., 0], dtype=torch.int32)
    for place in range(NIBBLES):
        words_OG |= zeros_OGN[..., place].int() << (place % 2 * 16 + place // 2 * 4)
    return words_OG.t().contiguous()
