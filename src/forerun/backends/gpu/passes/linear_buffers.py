"""What kernels of linear layers read and write besides rows and weights.

Legend: R most rows of a pass, P partial sums of squares of a row, H hidden size, O output features.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from forerun.backends.gpu.language import ROW_TILE
from forerun.backends.gpu.passes.packed_linear import DeviceLinear


class SplitWorkspace(NamedTuple):
    """Room for the parts of sums that several programs share; one for all layers, as kernels run one after another.

    Args:
        partials: float32.
        counters: int32, all 0 between kernels.
    """

    partials: Tensor
    counters: Tensor

    @classmethod
    def for_linears(cls, linears: Iterable[DeviceLinear], *, max_rows: int, device: str) -> "SplitWorkspace":
        """Room for each of these, one at a time, in passes of at most `max_rows` rows."""
        sizes, counts = [1], [1]
        for packed in linears:
            num_blocks, num_tiles, num_splits = packed.grid(max_rows)
            if num_splits > 1:
                rows_of_program = packed.rows_of_program(max_rows).num_row_tiles * ROW_TILE
                counts.append(num_blocks * num_tiles)
                sizes.append(counts[-1] * num_splits * rows_of_program * packed.tiles.block_out)
        return cls(
            partials=torch.empty(max(sizes), dtype=torch.float32, device=device),
            counters=torch.zeros(max(counts), dtype=torch.int32, device=device),
        )


class NormShape(NamedTuple):
    """What a kernel that makes up for a norm is compiled for.

    Args:
        num_parts: partial sums of a row's squares.
        size: of the numbers in a row (H).
    """

    num_parts: int
    size: int
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InputNorm:
    """The RMS norm that the rows of an input still lack but for its weight.

    Args:
        squares: float32 [P, R], of which the first `shape.num_parts` rows sum to a row's sum of squares.
        scale: by which the input was multiplied besides, see `NextNorm`.
    """

    squares: Tensor
    shape: NormShape
    scale: float

    @property
    def sums(self) -> tuple[Tensor, int, float]:
        """The squares, their stride and the scale, as `row_scales` reads them."""
        return self.squares, self.squares.stride(0), self.scale


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NextNorm:
    """What a kernel that writes the residual stream x writes besides, for the linear layer that comes next.

    Args:
        weight: float32 [H] of the norm.
        h: [R, H] in the dtype that is computed in: x * weight * scale.
        squares: float32 [P, R]: of each tile of outputs the sum of squares of x.
        scale: a power of two that brings numbers to where the dtype has most of them; 1 where it has them everywhere.
    """

    weight: Tensor
    h: Tensor
    squares: Tensor
    scale: float

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, int, float]:
        """All with the stride of the squares, as kernels take them."""
        return self.weight, self.h, self.squares, self.squares.stride(0), self.scale
