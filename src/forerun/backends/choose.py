"""Which backend a model runs on, and why: decided here and nowhere else."""

import sys
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Final, assert_never

import torch

from forerun.backends.backend import Backend
from forerun.backends.cpu.backend import EIGHT_BIT_INPUTS, NATIVE
from forerun.backends.dtypes import APART, USUAL, Conditions, native_obstacle
from forerun.backends.gpu.availability import fault as triton_fault
from forerun.backends.torch.backend import FUSED, REFERENCE
from forerun.core.config import Exactness
from forerun.core.errors import ConfigError

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


def triton_backend() -> Backend:
    """The GPU's backend, imported when it is needed: it brings Triton along, which not every machine has."""
    backend: Backend = import_module("forerun.backends.gpu.backend").TRITON
    return backend


def kernel_fault(error: Exception) -> str | None:
    """What Triton says of a kernel that takes more of something than this GPU has; None for any other error."""
    errors = sys.modules.get("triton.runtime.errors")
    return str(error) if errors is not None and isinstance(error, errors.OutOfResources) else None
