"""The interface of the torch ops, which the modules `reference_ops` and `fused_ops` both implement."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from torch import Tensor

from forerun.model.weights import Weight

Norm: TypeAlias = Callable[[Tensor], Tensor]  # [..., H] to [..., H]


class Linear(Protocol):
    """The product with a packed weight."""

    def __call__(self, x_TI: Tensor, residual_TO: Tensor | None = None) -> Tensor:
        """x W^T + b (+ residual): [T, I] to [T, O]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeMask:
    """The attention mask of T new rows over S filled slots.

    Args:
        num_rows: T.
        num_slots: S; the new rows are the last T slots.
        prefix_len: slots that every row attends to.
        ancestry_TW: bool, which rows attend to which of the W = S - prefix_len tree slots; None means causal.
        window: a row attends to the last `window` of these slots, its own included; None: to all.
    """

    num_rows: int
    num_slots: int
    prefix_len: int
    ancestry_TW: Tensor | None = None
    window: int | None = None


class TorchOps(Protocol):
    """One implementation of every op; `reference_ops` specifies what each computes."""

    def pack_linear(self, weight: Weight, bias_O: Tensor | None, /) -> Linear: ...
    def pack_norm(self, weight_H: Tensor, eps: float, /) -> Norm: ...
    def rotate(self, x_TND: Tensor, cos_T1D: Tensor, sin_T1D: Tensor, /) -> Tensor: ...
    def silu_mul(self, gate_up: Tensor, /) -> Tensor: ...
    def gelu_mul(self, gate_up: Tensor, /) -> Tensor: ...
    def clamped_mul(self, gate_up: Tensor, /) -> Tensor: ...

    def prepare_mask(self, mask: TreeMask, /, *, group: int, like: Tensor) -> Any:
        """The mask in the form that the same implementation's tree_attention takes."""

    def tree_attention(
        self, q_TQD: Tensor, keys_SKD: Tensor, values_SKD: Tensor, mask: Any, sinks_Q: Tensor | None = None, /
    ) -> Tensor: ...
