"""y = x W^T + b in blocks of a fixed number of rows.

Legend: T rows, I input features, O output features.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from forerun.kernels.layers import Linear

# A matrix product picks its algorithm by its shape, and then a row's bits depend on how many rows there are. With the
# count fixed they do not: neither the row's index nor the other rows' values change them (fp32, bf16, fp64 measured).
ROWS_PER_BLOCK = 8


def pack_linear(weight_OI: Tensor, bias_O: Tensor | None) -> Linear:
    """Return x [T, I] to y [T, O], or to y + residual when a residual [T, O] is given."""

    def linear(x_TI: Tensor, residual_TO: Tensor | None = None) -> Tensor:
        y_TO = in_blocks(x_TI, lambda block: functional.linear(block, weight_OI, bias_O))
        return y_TO if residual_TO is None else residual_TO + y_TO

    return linear


def in_blocks(x_TI: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply `compute` to blocks of ROWS_PER_BLOCK rows, the last one filled up with zeros."""
    outputs = []
    for start in range(0, x_TI.shape[0], ROWS_PER_BLOCK):
        block = x_TI[start : start + ROWS_PER_BLOCK]
        missing = ROWS_PER_BLOCK - block.shape[0]
        padded = functional.pad(block, (0, 0, 0, missing)) if missing else block.contiguous()
        outputs.append(compute(padded)[: block.shape[0]])
    return torch.cat(outputs)
