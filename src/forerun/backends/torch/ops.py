"""Torch's ops: one implementation of every op of a program, and the two there are."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from forerun.backends.torch import fused, reference
from forerun.backends.torch.layers import Linear, Norm
from forerun.model.weights import Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchOps:
    """One implementation of every op; signatures and shapes are those of `reference`."""

    pack_linear: Callable[[Weight, Tensor | None], Linear]
    pack_norm: Callable[[Tensor, float], Norm]
    rotate: Callable[[Tensor, Tensor, Tensor], Tensor]
    silu_mul: Callable[[Tensor], Tensor]
    prepare_mask: Callable[..., Any]  # its result is for the same ops' tree_attention
    tree_attention: Callable[[Tensor, Tensor, Tensor, Any], Tensor]


REFERENCE_OPS = TorchOps(
    pack_linear=reference.pack_linear,
    pack_norm=reference.pack_norm,
    rotate=reference.rotate,
    silu_mul=reference.silu_mul,
    prepare_mask=reference.prepare_mask,
    tree_attention=reference.tree_attention,
)
FUSED_OPS = TorchOps(
    pack_linear=fused.pack_linear,
    pack_norm=fused.pack_norm,
    rotate=fused.rotate,
    silu_mul=fused.silu_mul,
    prepare_mask=fused.prepare_mask,
    tree_attention=fused.tree_attention,
)
