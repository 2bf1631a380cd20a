"""Which twin of every op a process runs: chosen once, here and nowhere else."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from forerun.core.config import Exactness
from forerun.kernels import fused, reference
from forerun.kernels.layers import Linear, Norm


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """One implementation of every op; signatures and shapes are those of `kernels.reference`."""

    name: str
    pack_linear: Callable[[Tensor, Tensor | None], Linear]
    pack_norm: Callable[[Tensor, float], Norm]
    rotate: Callable[[Tensor, Tensor, Tensor], Tensor]
    silu_mul: Callable[[Tensor], Tensor]
    prepare_mask: Callable[..., Any]  # its result is for the same kernels' tree_attention
    tree_attention: Callable[[Tensor, Tensor, Tensor, Any], Tensor]


REFERENCE = Kernels(
    name="reference",
    pack_linear=reference.pack_linear,
    pack_norm=reference.pack_norm,
    rotate=reference.rotate,
    silu_mul=reference.silu_mul,
    prepare_mask=reference.prepare_mask,
    tree_attention=reference.tree_attention,
)
FUSED = Kernels(
    name="fused",
    pack_linear=fused.pack_linear,
    pack_norm=fused.pack_norm,
    rotate=fused.rotate,
    silu_mul=fused.silu_mul,
    prepare_mask=fused.prepare_mask,
    tree_attention=fused.tree_attention,
)


def choose_kernels(exactness: Exactness) -> Kernels:
    """`exact` needs rows whose bits depend on nothing else: the reference. `fast` takes the quickest twin."""
    return REFERENCE if exactness == "exact" else FUSED
