"""silu(gate) * up, gate and up side by side."""

import torch
from torch import Tensor
from torch.nn import functional


def silu_mul(gate_up: Tensor) -> Tensor:
    """[T, 2I] to [T, I].

    Row by row: given many rows, torch cuts the loop between threads in the middle of one, and the end of a piece is
    rounded by other code than its inside.
    """
    return torch.stack([silu_mul_row(row) for row in gate_up])


def silu_mul_row(row: Tensor) -> Tensor:
    gate, up = row.chunk(2)
    return functional.silu(gate) * up
