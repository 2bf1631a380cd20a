"""Weights as the kernels read them, and what kernels are compiled for.

Legend: O output features, I input features, G groups of inputs, B blocks of inputs, J words of a block.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from forerun.backends.gpu.language import ROW_TILE, launch_options
from forerun.backends.gpu.passes.tiles import Tiles, choose_tiles
from forerun.core.model_spec import WeightFormat
from forerun.model.quantise import as_int4, as_plain
from forerun.model.weights import BlockWeight, DenseWeight, Int4Weight, Int8Weight, StackedWeight, Weight

ROWS_PER_PROGRAM: Final = 2 * ROW_TILE  # Wider passes have several blocks of rows.
NIBBLES: Final = 8  # int4 weights in a word.
ZERO_BITS: Final = 4  # The last bits of a scale's word hold its zero.
Multipliable: TypeAlias = DenseWeight | Int8Weight | Int4Weight


class LinearWeight(NamedTuple):
    """A weight [O, I] in the memory that kernels read.

    Args:
        matrix: of plain weights [O, I] in the dtype that is computed in, the checkpoint's own tensor; of int8, int8
            [O, I]; of int4, int32 [B, O, J]: nibble i of word j of a block is its input i * J + j, so that the words of
            a block lie together and each nibble gives consecutive inputs.
        scales: None; of int8, float32 [O]; of int4, int32 [G, O], a float32 whose last four bits are the group's zero.
            So a group has one number to load. A scale that was float16 or bfloat16, as checkpoints have them, has zeros
            there and stays exact; any other is rounded to 20 bits.
        bias: float32 [O] or None.
    """

    matrix: Tensor
    scales: Tensor | None
    bias: Tensor | None


class LinearShape(NamedTuple):
    """What a kernel that multiplies by a weight is compiled for.

    Args:
        group_size: inputs of a group of int4; else 0.
        block_out, block_in: outputs of a program, and its inputs at a time.
        num_splits: programs that share the inputs of an output.
        is_wide: the pass has several blocks of rows, and so programs enough without shared inputs.
        num_row_tiles: tiles of ROW_TILE rows in a program, 1 or 2.
    """

    weight_format: WeightFormat
    num_in: int
    num_out: int
    group_size: int
    block_out: int
    block_in: int
    num_splits: int
    is_wide: bool
    num_row_tiles: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceLinear:
    """A weight [O, I] and how programs divide it.

    Args:
        group_size: inputs of a group of int4; else 0.
        paired: rows of gates and, below them, as many of ups; a program does as many of the one as of the other.
    """

    weight: LinearWeight
    num_out: int
    num_in: int
    group_size: int
    weight_format: WeightFormat
    tiles: Tiles
    paired: bool

    @property
    def num_tiles(self) -> int:
        """Tiles of outputs, and so partial sums of squares that `linear_add` writes for a row."""
        return -(-self.num_out // self.tiles.block_out)

    def grid(self, num_rows: int) -> tuple[int, int, int]:
        """Blocks of rows, which share weights and so come first; tiles of outputs; splits of inputs."""
        num_blocks = -(-num_rows // ROWS_PER_PROGRAM)
        return num_blocks, self.num_tiles, 1 if num_blocks > 1 else self.tiles.num_splits

    def shape(self, num_rows: int) -> LinearShape:
        """The compile-time constants of a kernel for this many rows."""
        return LinearShape(
            self.weight_format, self.num_in, self.num_out, self.group_size,
            self.tiles.block_out, self.tiles.block_in, self.tiles.num_splits,
            is_wide=num_rows > ROWS_PER_PROGRAM, num_row_tiles=1 if num_rows <= ROW_TILE else 2,
        )  # fmt: skip

    def options(self, overlaps: bool) -> dict[str, object]:
        """How a kernel that multiplies by this weight is launched."""
        return launch_options(num_warps=self.tiles.num_warps, num_stages=self.tiles.num_stages, overlaps=overlaps)


def pack(
    weight: Weight, bias_O: Tensor | None, *, compute: torch.dtype, paired: bool = False, head_dim: int | None = None
) -> DeviceLinear:
    """A weight for the kernels here; `head_dim` if it is that of queries, keys and values: a program does a head."""
    weight = multipliable(weight)
    weight_format = format_of(weight)
    num_out, num_in = weight.shape
    assert not paired or num_out % 2 == 0, num_out
    tiles = choose_tiles(num_out, num_in, weight_format=weight_format, compute=compute, head_dim=head_dim)
    scales, group_size = None, 0
    match weight:
        case DenseWeight():
            matrix = weight.values_OI.to(compute).contiguous()
        case Int8Weight():
            matrix, scales = weight.values_OI.contiguous(), weight.scales_O
        case Int4Weight():
            matrix, scales = pack_words(weight, tiles.block_in), pack_scales(weight, tiles.block_in)
            group_size = weight.group_size
            assert group_size * NIBBLES >= tiles.block_in, (
                f"groups of {group_size} inputs are too small for the kernels"
            )
    return DeviceLinear(
        weight=LinearWeight(matrix, scales, None if bias_O is None else bias_O.float().contiguous()),
        num_out=num_out,
        num_in=num_in,
        group_size=group_size,
        weight_format=weight_format,
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
