"""silu(gate) * up, gate and up side by side."""

import torch
from torch import Tensor
from torch.nn import functional


def silu_mul(gate_up: Tensor) -> Tensor:
    """[T, 2I] to [T, I].

    Row by row: with many rows, torch may split a row between threads, and it rounds the end of each part with different
    code.
    """
    return torch.stack([silu_mul_row(row) for row in gate_up])


def silu_mul_row(row: Tensor) -> Tensor:
    gate, up = row.chunk(2)
    return functional.silu(gate) * up
