"""What the launches of linear layers have in common.

Legend: R most rows of a pass, P partial sums of squares of a row, H hidden size, O output features.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from forerun.backends.gpu.language import ROW_TILE
from forerun.backends.gpu.passes.weights import PackedLinear

ROWS_PER_PROGRAM: Final = 2 * ROW_TILE  # wider passes have several blocks of rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workspace:
    """Room for the parts of sums that several programs share; one for all layers, as kernels run one after another.

    Args:
        partials: float32.
        counters: int32, all 0 between kernels.
    """

    partials: Tensor
    counters: Tensor

    @classmethod
    def for_linears(cls, linears: Iterable[PackedLinear], *, max_rows: int, device: str) -> "Workspace":
        """Room for each of these, one at a time. In passes of several blocks of rows no sums are shared."""
        num_rows = min(ROWS_PER_PROGRAM, -(-max_rows // ROW_TILE) * ROW_TILE)
        sizes, counts = [1], [1]
        for packed in linears:
            counts.append(num_tiles(packed))
            sizes.append(num_tiles(packed) * packed.tiles.num_splits * num_rows * packed.tiles.block_out)
        return cls(
            partials=torch.empty(max(sizes), dtype=torch.float32, device=device),
            counters=torch.zeros(max(counts), dtype=torch.int32, device=device),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NormFold:
    """The RMS norm that the rows of an input still lack but for its weight.

    Args:
        squares: float32 [P, R], of which the first `num_tiles` rows sum to a row's sum of squares.
        size: of the numbers in a row (H).
        scale: by which the input was multiplied besides.
    """

    squares: Tensor
    num_tiles: int
    size: int
    eps: float
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NextNorm:
    """What whoever writes the residual stream x writes besides, for the linear layer that comes next.

    Args:
        weight: float32 [H] of the norm.
        h: [R, H] in the dtype that is computed in: x * weight * scale.
        squares: float32 [P, R]: of each tile of outputs the sum of squares of x.
        scale: 1, or less where large numbers would not fit.
    """

    weight: Tensor
    h: Tensor
    squares: Tensor
    scale: float


def num_tiles(packed: PackedLinear) -> int:
    """Tiles of outputs, and so partial sums of squares that `linear_add` writes for a row."""
    return -(-packed.num_out // packed.tiles.block_out)


def grid_of(packed: PackedLinear, num_rows: int) -> tuple[int, int, int]:
    """Blocks of rows, which share weights and so come first; tiles of outputs; splits of inputs."""
    num_blocks = -(-num_rows // ROWS_PER_PROGRAM)
    return num_blocks, num_tiles(packed), 1 if num_blocks > 1 else packed.tiles.num_splits


def shape_constants(packed: PackedLinear, num_rows: int) -> dict[str, Any]:
    """The constants of `finished_sums`."""
    tiles = packed.tiles
    return {
        "FORMAT": packed.weight_format,
        "NUM_IN": packed.num_in,
        "NUM_OUT": packed.num_out,
        "GROUP_SIZE": packed.group_size,
        "BLOCK_OUT": tiles.block_out,
        "BLOCK_IN": tiles.block_in,
        "NUM_SPLITS": tiles.num_splits,
        "IS_WIDE": num_rows > ROWS_PER_PROGRAM,
        "NUM_TILES": 1 if num_rows <= ROW_TILE else 2,
    }


def norm_arguments(fold: NormFold | None) -> dict[str, Any]:
    """The arguments of `row_scales`; NUM_PARTS is 0 if the input lacks nothing."""
    if fold is None:
        return {"squares": None, "row_stride": 0, "NUM_PARTS": 0, "SIZE": 1, "EPS": 0.0, "SCALE": 1.0}
    return {
        "squares": fold.squares,
        "row_stride": fold.squares.stride(0),
        "NUM_PARTS": fold.num_tiles,
        "SIZE": fold.size,
        "EPS": fold.eps,
        "SCALE": fold.scale,
    }
