"""silu(gate) * up, gate and up side by side."""

from torch import Tensor
from torch.nn import functional


def silu_mul(gate_up: Tensor) -> Tensor:
    """[T, 2I] to [T, I]."""
    gate, up = gate_up.chunk(2, -1)
    return functional.silu(gate) * up
