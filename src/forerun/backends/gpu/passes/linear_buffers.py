"""Buffers of the linear layers' kernels besides rows and weights: partial sums, and the inputs of RMS norms.

Legend: R the largest number of rows of a pass, P partial sums of squares of a row, H hidden size, O output features.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from forerun.backends.gpu.kernel_parts import ROW_TILE
from forerun.backends.gpu.passes.packed_linear import DeviceLinear


class SplitWorkspace(NamedTuple):
    """Memory for the partial sums of split-K; all layers share one, as kernels run one after another.

    Args:
        partials: float32, the partial sums.
        counters: int32, finished programs of each tile; all 0 between kernels.
    """

    partials: Tensor
    counters: Tensor

    @classmethod
    def for_linears(cls, linears: Iterable[DeviceLinear], *, max_rows: int, device: str) -> "SplitWorkspace":
        """A workspace large enough for any one of these layers in passes of at most `max_rows` rows."""
        sizes = [1]
        counts = [1]
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
    """The sizes that a kernel which applies an `InputNorm` is compiled for.

    Args:
        num_parts: partial sums of a row's squares; 0: there is no norm, and the input is multiplied as it is.
        size: numbers in a row (H).
        cap: the outputs y become cap tanh(y / cap); 0: they stay.
    """

    num_parts: int
    size: int
    eps: float
    cap: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InputNorm:
    """The part of an RMS norm that a linear layer applies after its product: everything but the norm's weight.

    Args:
        squares: float32 [P, R]; the first `shape.num_parts` of its rows sum to the sums of squares of the input's rows.
        scale: a factor that the input already contains and that is divided out, see `NextNorm`.
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
    """Outputs for the next linear layer, of a kernel that writes the residual stream x.

    Args:
        weight: float32 [H], the norm's weight.
        h: [R, H] in the compute dtype: x * weight * scale.
        squares: float32 [P, R], the sum of squares of x over each tile of outputs.
        scale: a power of two that moves numbers into the range where the dtype is precise; 1 if it has a wide range.
    """

    weight: Tensor
    h: Tensor
    squares: Tensor
    scale: float

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, int, float]:
        """All fields and the stride of the squares, as arguments of a kernel."""
        return self.weight, self.h, self.squares, self.squares.stride(0), self.scale
