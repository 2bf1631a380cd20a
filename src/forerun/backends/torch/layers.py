"""The shapes of bound layers, common to all kernels: a weight, laid out as its kernel likes it, and its use."""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

Norm = Callable[[Tensor], Tensor]  # [..., H] to [..., H]


class Linear(Protocol):
    """The product with a packed weight."""

    def __call__(self, x_TI: Tensor, residual_TO: Tensor | None = None) -> Tensor:
        """x W^T + b (+ residual): [T, I] to [T, O]."""
        ...
