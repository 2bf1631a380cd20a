"""Packs weights into the layout that the kernels read, and chooses how kernels are compiled and launched.

Legend: O output features, I input features, R some of the outputs, G groups of inputs, S spans of inputs (SPAN_INPUTS),
N nibbles of a word, J words of a span.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from forerun.backends.gpu.kernel_parts import ROW_TILE, launch_options
from forerun.backends.gpu.passes.dequantise import BFLOAT16_UNIT, SPAN_INPUTS
from forerun.backends.gpu.passes.tiles import RowBlock, Tiles, choose_rows, choose_tiles
from forerun.core.model_spec import WeightFormat
from forerun.model.quantise import as_int4, as_plain, blocks
from forerun.model.weights import BlockWeight, DenseWeight, Int4Weight, Int8Weight, PlainWeight, StackedWeight, Weight

NIBBLES: Final = 8  # int4 weights, or zeros, in a word.


class LinearWeight(NamedTuple):
    """A weight [O, I] in the layout that kernels read.

    Args:
        matrix: for plain weights [O, I] in the compute dtype, without a copy if possible; for int8, int8 [O, I]; for
            int4, int32 [S, O, J] from `pack_words`.
        scales: for int8, float32 [O] from `in_units`; for int4, float32 [S, O, groups of a span] from `pack_scales`;
            otherwise None.
        zeros: for int4, int32 [ceil(all groups / 8), O], with the zero of group 2 i + j of eight from bit 4 i + 16 j
            on; otherwise None.
        bias: float32 [O] or None.
    """

    matrix: Tensor
    scales: Tensor | None
    zeros: Tensor | None
    bias: Tensor | None


class LinearShape(NamedTuple):
    """The sizes that a kernel which multiplies by a weight is compiled for.

    Args:
        group_size: inputs of a group of int4 weights; otherwise 0.
        block_out, block_in: outputs of a program, and the inputs that it processes at a time.
        step_in: for int4, the inputs of a step; it divides block_in.
        num_splits: programs that divide the inputs of an output between them.
        num_stages: steps in flight at a time, including the one that is computed.
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
        group_size: inputs of a group of int4 weights; otherwise 0.
        compute: the dtype of the rows.
        paired: whether the first half of the outputs are gates and the second half ups; a program computes pairs of
            both.
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
        """Tiles of outputs; `linear_add` writes one partial sum of squares of a row for each."""
        return -(-self.num_out // self.tiles.block_out)

    def grid(self, num_rows: int) -> tuple[int, int, int]:
        """Blocks of rows, tiles of outputs, splits of inputs. Blocks of rows come first, as they share weights."""
        rows = self.rows_of_program(num_rows)
        return -(-num_rows // (rows.num_row_tiles * ROW_TILE)), self.num_tiles, self.tiles.num_splits

    def rows_of_program(self, num_rows: int) -> RowBlock:
        """How a program divides the rows of a pass."""
        return choose_rows(
            self.tiles, num_rows, weight_format=self.weight_format, compute=self.compute, group_size=self.group_size
        )

    def options(self, num_rows: int, overlaps: bool) -> dict[str, object]:
        """Launch options and compile-time sizes of a kernel that multiplies this many rows by this weight."""
        rows = self.rows_of_program(num_rows)
        tiles = self.tiles
        shape = LinearShape(
            self.weight_format, self.num_in, self.num_out, self.group_size, tiles.block_out, tiles.block_in,
            rows.step_in, tiles.num_splits, rows.num_stages, rows.num_row_tiles,
        )  # fmt: skip
        options = launch_options(num_warps=rows.num_warps, num_stages=rows.num_stages, overlaps=overlaps)
        return {"SHAPE": shape, "OVERLAPS": overlaps, **options}


def pack(
    weight: Weight, bias_O: Tensor | None, *, compute: torch.dtype, paired: bool = False, head_dim: int | None = None
) -> DeviceLinear:
    """Pack a weight for the kernels of this folder.

    Args:
        head_dim: for the weight of queries, keys and values, the head size; a program then computes one head.
    """
    weight = multipliable(weight)
    weight_format = format_of(weight)
    num_out, num_in = weight.shape
    assert not paired or num_out % 2 == 0, num_out
    tiles = choose_tiles(num_out, num_in, weight_format=weight_format, compute=compute, head_dim=head_dim)
    scales = None
    zeros = None
    group_size = 0
    match weight:
        case DenseWeight():
            matrix = weight.values_OI.to(compute).contiguous()
        case Int8Weight():
            matrix = weight.values_OI.contiguous()
            scales = in_units(weight.scales_O, compute)
        case Int4Weight():
            matrix = pack_words(weight)
            scales = pack_scales(weight, compute)
            zeros = pack_zeros(weight)
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


def stack(linears: Sequence[DeviceLinear]) -> DeviceLinear:
    """Weights of one shape and format as one, the outputs of the first before those of the second, and so on. Each
    program adds up all inputs of its outputs.
    """
    first = linears[0]
    weights = [packed.weight for packed in linears]
    kinds = {(packed.num_out, packed.num_in, packed.group_size, packed.weight_format) for packed in linears}
    assert len(kinds) == 1, f"weights of one shape and format, not {kinds}"
    axis = 1 if first.weight_format == "int4" else 0  # Words and scales of int4 are in spans of inputs.

    def joined(parts: Sequence[Tensor | None], dim: int) -> Tensor | None:
        found = [part for part in parts if part is not None]
        return torch.cat(found, dim) if found else None

    matrix = torch.cat([weight.matrix for weight in weights], axis)
    scales = joined([weight.scales for weight in weights], axis)
    zeros = joined([weight.zeros for weight in weights], 1)
    return replace(
        first,
        weight=LinearWeight(matrix, scales, zeros, joined([weight.bias for weight in weights], 0)),
        num_out=sum(packed.num_out for packed in linears),
        tiles=replace(first.tiles, num_splits=1),
    )


def multipliable(weight: Weight) -> PlainWeight:
    """The same values in a format that these kernels multiply by. Q4_0 becomes int4; other block types have minima or
    scales of groups, and become plain weights.
    """
    match weight:
        case BlockWeight(block_type="Q4_0"):
            return as_int4(weight)
        case BlockWeight() | StackedWeight():
            return DenseWeight(values_OI=as_plain(weight))
        case _:
            return weight


def format_of(weight: PlainWeight) -> WeightFormat:
    """The name of a weight's format."""
    match weight:
        case DenseWeight():
            return "plain"
        case Int8Weight():
            return "int8"
        case Int4Weight():
            return "int4"


def pack_words(weight: Int4Weight) -> Tensor:
    """int32 [S, O, J], arranged so that the weights that a thread multiplies are in four adjacent words.

    Input 16 (4 w + n) + 8 p + 2 t + h of a span is nibble n of half h of word 4 t + 2 p + w. A few outputs are packed
    at a time, as the intermediate tensors take several times as much memory.
    """
    num_out, num_in = weight.values_OI.shape
    num_spans = -(-num_in // SPAN_INPUTS)
    num_words = SPAN_INPUTS // NIBBLES
    words_SOJ = torch.empty(num_spans, num_out, num_words, dtype=torch.int32, device=weight.values_OI.device)
    for rows in blocks(weight.values_OI):
        padded_RI = functional.pad(weight.values_OI[rows], (0, -num_in % SPAN_INPUTS))
        # The digits of an input's number are span, w, n, p, t, h; those of a nibble's place are span, t, p, w, h, n.
        digits = padded_RI.view(-1, num_spans, 2, NIBBLES // 2, 2, 4, 2)
        nibbles_SRJN = digits.permute(1, 0, 5, 4, 2, 6, 3).reshape(num_spans, -1, num_words, NIBBLES).int()
        words_SRJ = nibbles_SRJN[..., 0]
        for place in range(1, NIBBLES):
            words_SRJ |= nibbles_SRJN[..., place] << (4 * place)
        words_SOJ[:, rows] = words_SRJ
    return words_SOJ


def pack_scales(weight: Int4Weight, compute: torch.dtype) -> Tensor:
    """[S, O, groups of a span], in units of `in_units`; scales of groups beyond the last input are 0."""
    num_out = len(weight.scales_OG)
    groups = SPAN_INPUTS // weight.group_size
    scales_OG = functional.pad(weight.scales_OG, (0, -weight.scales_OG.shape[1] % groups))
    return in_units(scales_OG.view(num_out, -1, groups).transpose(0, 1).contiguous(), compute)


def in_units(scales: Tensor, compute: torch.dtype) -> Tensor:
    """Scales that include the unit of the converted weights (`BFLOAT16_UNIT`)."""
    return scales / BFLOAT16_UNIT if compute == torch.bfloat16 else scales


def pack_zeros(weight: Int4Weight) -> Tensor:
    """int32 [ceil(G / 8), O], with even groups in the lower halves of words and odd groups in the upper halves."""
    num_groups = weight.zeros_OG.shape[1]
    zeros_OGN = functional.pad(weight.zeros_OG, (0, -num_groups % NIBBLES)).view(len(weight.zeros_OG), -1, NIBBLES)
    words_OG = torch.zeros_like(zeros_OGN[..., 0], dtype=torch.int32)
    for place in range(NIBBLES):
        words_OG |= zeros_OGN[..., place].int() << (place % 2 * 16 + place // 2 * 4)
    return words_OG.t().contiguous()
