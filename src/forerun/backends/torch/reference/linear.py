"""y = x W^T + b in blocks of a fixed number of rows.

Legend: T rows, I input features, O output features.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from forerun.backends.torch.ops import Linear
from forerun.model.quantise import as_plain
from forerun.model.weights import Weight

# The algorithm of a matrix product depends on its shape, so a row's bits depend on the number of rows. With a fixed
# number and the same alignment for every row, neither the row's index nor the other rows' values change its bits
# (measured in fp32, bf16 and fp64; with rows of odd length, half of all fp64 shapes depended on the index). Four rows
# rather than eight, since on CPUs with only AVX2 MKL takes six rows at once and computes the last two with other code.
ROWS_PER_BLOCK = 4
FEATURES_PER_STEP = 16


def pack_linear(weight: Weight, bias_O: Tensor | None) -> Linear:
    """Return a function of x [T, I] that gives y [T, O], or y + residual for a residual [T, O]. Weight: [O, I]."""
    plain_OI = as_plain(weight)
    weight_OI = functional.pad(plain_OI, (0, -plain_OI.shape[1] % FEATURES_PER_STEP))

    def linear(x_TI: Tensor, residual_TO: Tensor | None = None) -> Tensor:
        y_TO = in_blocks(x_TI, lambda block: functional.linear(block, weight_OI, bias_O))
        return y_TO if residual_TO is None else residual_TO + y_TO

    return linear


def in_blocks(x_TI: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply `compute` to blocks of ROWS_PER_BLOCK rows; pad the last block and the end of each row with zeros."""
    outputs = []
    for start in range(0, x_TI.shape[0], ROWS_PER_BLOCK):
        block = x_TI[start : start + ROWS_PER_BLOCK]
        missing_rows, missing_features = ROWS_PER_BLOCK - block.shape[0], -block.shape[1] % FEATURES_PER_STEP
        padded = functional.pad(block, (0, missing_features, 0, missing_rows)).clone()
        outputs.append(compute(padded)[: block.shape[0]])
    return torch.cat(outputs)
