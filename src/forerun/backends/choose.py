"""Which kernels a model runs on: chosen here and nowhere else."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, TypeAlias

import torch
from torch import Tensor

from forerun.backends.cpu.binding import fault
from forerun.backends.gpu.fault import fault as triton_fault
from forerun.backends.torch import fused, reference
from forerun.backends.torch.layers import Linear, Norm
from forerun.core.config import Exactness, KernelsName
from forerun.core.errors import ConfigError
from forerun.model.quantise import Weight

ANY_HEAD_DIM = 128  # where there are no heads
NATIVE_DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """One implementation of every op; signatures and shapes are those of `backends.torch.reference`.

    Args:
        row_exact: the bits of a row depend on nothing but that row's own text and the number of threads.
    """

    name: str
    row_exact: bool = False
    pack_linear: Callable[[Weight, Tensor | None], Linear]
    pack_norm: Callable[[Tensor, float], Norm]
    rotate: Callable[[Tensor, Tensor, Tensor], Tensor]
    silu_mul: Callable[[Tensor], Tensor]
    prepare_mask: Callable[..., Any]  # its result is for the same kernels' tree_attention
    tree_attention: Callable[[Tensor, Tensor, Tensor, Any], Tensor]


REFERENCE = Kernels(
    name="reference",
    row_exact=True,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeKernels:
    """The C library: not op by op, but a whole program in one call; see backends/cpu/executor."""

    name: str = "native"
    row_exact: bool = True  # and whatever the number of threads


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonKernels:
    """The GPU's kernels: a few fused ones per layer, see backends/gpu/executor."""

    name: str = "triton"
    row_exact: bool = True


NATIVE = NativeKernels()
TRITON = TritonKernels()
ModelKernels: TypeAlias = Kernels | NativeKernels | TritonKernels  # what a model can run on


def choose_kernels(
    exactness: Exactness, *, dtype: torch.dtype, device: str, head_dim: int, wanted: KernelsName = "auto"
) -> ModelKernels:
    """The quickest there are; for `exact` the quickest whose rows depend on nothing else.

    Raises:
        ConfigError: Triton's kernels are wanted and cannot run.
    """
    if wanted == "triton" or (wanted == "auto" and torch.device(device).type == "cuda"):
        missing = triton_fault(device, dtype=dtype, head_dim=head_dim)
        if missing is None:
            return TRITON
        if wanted == "triton":
            raise ConfigError(f'kernels "triton" cannot run: {missing}. Take "auto", or what they need')
    elif wanted == "auto" and runs_native(dtype, device):
        return NATIVE
    return REFERENCE if exactness == "exact" else FUSED


def runs_native(dtype: torch.dtype, device: str) -> bool:
    """True where the C library is at hand and computes in this dtype."""
    return torch.device(device).type == "cpu" and dtype in NATIVE_DTYPES and fault() is None


def missing_kernels(*, dtype: torch.dtype, device: str, head_dim: int) -> str | None:
    """Why the device's own kernels do not run there; None where they do, or where there are none."""
    match torch.device(device).type:
        case "cuda":
            return triton_fault(device, dtype=dtype, head_dim=head_dim)
        case "cpu" if dtype in NATIVE_DTYPES:
            return fault()
        case _:
            return None


def device_sampler(scores_TV: Tensor) -> ModuleType | None:
    """Kernels that choose tokens where these scores are; None for those of torch."""
    if not scores_TV.is_cuda or scores_TV.dtype != torch.float32 or scores_TV.stride(-1) != 1:
        return None
    return sampler_for(str(scores_TV.device))


@cache
def sampler_for(device: str) -> ModuleType | None:
    """The same for a device."""
    if triton_fault(device, dtype=torch.float32, head_dim=ANY_HEAD_DIM) is not None:
        return None
    return import_module("forerun.backends.gpu.choosing.score_rows")  # brings Triton along, which not every machine has
