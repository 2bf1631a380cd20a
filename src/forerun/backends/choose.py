"""Which backend a model runs on, in which dtype, and why: decided here and nowhere else."""

import sys
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Final, assert_never

import torch

from forerun.backends.backend import Backend
from forerun.backends.cpu.backend import NATIVE
from forerun.backends.cpu.binding import fault as native_fault
from forerun.backends.cpu.host_group import sharing_fault
from forerun.backends.gpu.availability import fault as triton_fault
from forerun.backends.torch.backend import FUSED, REFERENCE
from forerun.core.config import DTypeName, Exactness, KernelsName
from forerun.core.errors import ConfigError

APART: Final = "ranks of several hosts have no memory in common, through which these kernels add up what they computed"
NATIVE_DTYPES: Final = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendChoice:
    """A backend, and why it is not a faster one.

    Args:
        missing: what keeps the kernels made for this device from running; None where they run, or there are none.
    """

    backend: Backend
    missing: str | None


def choose_backend(
    exactness: Exactness,
    *,
    dtype: torch.dtype,
    device: str,
    head_dim: int,
    group: int = 1,
    wanted: KernelsName = "auto",
    is_shared: bool = False,
    is_apart: bool = False,
) -> BackendChoice:
    """The fastest available backend; for `exact` the fastest row-exact one.

    Args:
        group: query heads of a key head.
        is_shared: several ranks share the model, whose kernels then exchange what they computed.
        is_apart: not all of them are on this host.

    Raises:
        ConfigError: Triton's kernels are wanted and cannot run.
    """
    torchs = REFERENCE if exactness == "exact" else FUSED
    gpu_fault = partial(triton_fault, device, dtype=dtype, head_dim=head_dim, group=group, is_shared=is_shared)
    match wanted:
        case "torch":
            return BackendChoice(backend=torchs, missing=None)
        case "triton":
            missing = APART if is_apart else gpu_fault()
            if missing is not None:
                raise ConfigError(f'kernels "triton" cannot run: {missing}. Take "auto", or what they need')
            return BackendChoice(backend=triton_backend(), missing=None)
        case "auto" if torch.device(device).type == "cuda":
            missing = APART if is_apart else gpu_fault()
            return BackendChoice(backend=torchs if missing else triton_backend(), missing=missing)
        case "auto" if torch.device(device).type == "cpu" and dtype in NATIVE_DTYPES:
            missing = APART if is_apart else native_fault() or (sharing_fault() if is_shared else None)
            return BackendChoice(backend=torchs if missing else NATIVE, missing=missing)
        case "auto":
            return BackendChoice(backend=torchs, missing=None)
        case unknown:
            assert_never(unknown)


def runs_native(dtype: torch.dtype, device: str) -> bool:
    """True if the C library is available and supports this dtype."""
    return torch.device(device).type == "cpu" and dtype in NATIVE_DTYPES and native_fault() is None


def triton_backend() -> Backend:
    """The GPU's backend, imported when it is needed: it brings Triton along, which not every machine has."""
    backend: Backend = import_module("forerun.backends.gpu.backend").TRITON
    return backend


def compute_dtype(wanted: DTypeName, *, stored: torch.dtype, is_quantised: bool, device: str) -> torch.dtype:
    """The dtype to compute in. "auto" is that of the stored weights, except where this CPU would only emulate it.

    Beside weights of 8 or 4 bits, bfloat16 loses nothing that shows and halves the cache, so a CPU takes it whatever
    the checkpoint's dtype, unless it would only emulate it.
    """
    if wanted != "auto":
        return getattr(torch, wanted)  # type: ignore[no-any-return]
    if device != "cpu" or not (is_quantised or stored in (torch.bfloat16, torch.float16)):
        return stored
    if runs_native(torch.bfloat16, device) or has_fast_bfloat16():
        return torch.bfloat16
    return torch.promote_types(stored, torch.float32)


def has_fast_bfloat16() -> bool:
    """True where the CPU multiplies bfloat16 natively; elsewhere float32 is faster."""
    return torch._C._has_mkldnn and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def kernel_fault(error: Exception) -> str | None:
    """What Triton says of a kernel that takes more of something than this GPU has; None for any other error."""
    errors = sys.modules.get("triton.runtime.errors")
    return str(error) if errors is not None and isinstance(error, errors.OutOfResources) else None
