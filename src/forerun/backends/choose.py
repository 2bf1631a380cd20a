"""Which backend a model runs on, in which dtype, and why: decided here and nowhere else."""

import sys
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Final, assert_never

import torch

from forerun.backends.backend import Backend
from forerun.backends.cpu.backend import EIGHT_BIT_INPUTS, NATIVE
from forerun.backends.cpu.binding import fault as native_fault
from forerun.backends.cpu.host_group import sharing_fault
from forerun.backends.gpu.availability import fault as triton_fault
from forerun.backends.torch.backend import FUSED, REFERENCE
from forerun.core.config import DTypeName, Exactness, InputsName, KernelsName
from forerun.core.errors import ConfigError
from forerun.runtime.processor import has_fast_bfloat16

APART: Final = "ranks of several hosts have no memory in common, through which these kernels add up what they computed"
NATIVE_DTYPES: Final = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What decides on the kernels besides the model and its device.

    Args:
        kernels: those that were asked for.
        is_shared: several ranks share the model, whose kernels then exchange what they computed.
        is_apart: not all of them are on this host.
        inputs: what the CPU's kernels multiply a file's codes with.
    """

    kernels: KernelsName = "auto"
    is_shared: bool = False
    is_apart: bool = False
    inputs: InputsName = "int16"


USUAL: Final = Conditions()


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
    conditions: Conditions = USUAL,
) -> BackendChoice:
    """The fastest available backend; for `exact` the fastest row-exact one.

    Args:
        group: query heads of a key head.

    Raises:
        ConfigError: Triton's kernels are wanted and cannot run.
    """
    torchs = REFERENCE if exactness == "exact" else FUSED
    is_shared, is_apart = conditions.is_shared, conditions.is_apart
    gpu_fault = partial(triton_fault, device, dtype=dtype, head_dim=head_dim, group=group, is_shared=is_shared)
    match conditions.kernels:
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
            missing = native_obstacle(conditions)
            native = EIGHT_BIT_INPUTS if conditions.inputs == "int8" else NATIVE
            return BackendChoice(backend=torchs if missing else native, missing=missing)
        case "auto":
            return BackendChoice(backend=torchs, missing=None)
        case unknown:
            assert_never(unknown)


def native_obstacle(conditions: Conditions) -> str | None:
    """What keeps the C library from running a model; None where nothing does."""
    if conditions.is_apart:
        return APART
    return native_fault() or (sharing_fault() if conditions.is_shared else None)


def runs_native(dtype: torch.dtype, device: str, conditions: Conditions = USUAL) -> bool:
    """True if a model of this dtype is run by the C library."""
    is_possible = torch.device(device).type == "cpu" and dtype in NATIVE_DTYPES
    return is_possible and conditions.kernels == "auto" and native_obstacle(conditions) is None


def triton_backend() -> Backend:
    """The GPU's backend, imported when it is needed: it brings Triton along, which not every machine has."""
    backend: Backend = import_module("forerun.backends.gpu.backend").TRITON
    return backend


def compute_dtype(
    wanted: DTypeName, *, stored: torch.dtype, is_quantised: bool, device: str, conditions: Conditions = USUAL
) -> torch.dtype:
    """The dtype to compute in. "auto" is that of the stored weights, except where this CPU would only emulate it.

    Beside weights of 8 or 4 bits, bfloat16 loses nothing that shows and halves the cache, so a CPU takes it whatever
    the checkpoint's dtype, unless it would only emulate it.
    """
    if wanted != "auto":
        return getattr(torch, wanted)  # type: ignore[no-any-return]
    if device != "cpu" or not (is_quantised or stored in (torch.bfloat16, torch.float16)):
        return stored
    if runs_native(torch.bfloat16, device, conditions) or has_fast_bfloat16():
        return torch.bfloat16
    return torch.promote_types(stored, torch.float32)


def kernel_fault(error: Exception) -> str | None:
    """What Triton says of a kernel that takes more of something than this GPU has; None for any other error."""
    errors = sys.modules.get("triton.runtime.errors")
    return str(error) if errors is not None and isinstance(error, errors.OutOfResources) else None
