"""Chooses the backend that a model runs on, and gives the reason."""

import sys
from collections.abc import Collection
from dataclasses import dataclass
from importlib import import_module
from typing import Final

import torch

from forerun.backends.backend import Backend
from forerun.backends.cpu.backend import EIGHT_BIT_INPUTS, NATIVE
from forerun.backends.dtypes import APART, TRITON_MECHANISMS, UNSHARED, USUAL, Conditions, native_obstacle
from forerun.backends.gpu.availability import fault as triton_fault
from forerun.backends.torch.backend import FUSED, REFERENCE
from forerun.core.config import Exactness
from forerun.core.errors import ConfigError
from forerun.core.mechanisms import lacking

NATIVE_DTYPES: Final = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendChoice:
    """A backend, and why a faster one is not used.

    Args:
        missing: why the kernels made for this device cannot run; None if they run or there are none.
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
    other_heads: Collection[tuple[int, int]] = (),
    conditions: Conditions = USUAL,
) -> BackendChoice:
    """The fastest available backend; for `exact` the fastest row-exact one.

    Args:
        group: query heads per key head.
        other_heads: head sizes and query heads per key head of layers that have others.

    Raises:
        ConfigError: the Triton kernels were requested and cannot run, or would run and do not read such a cache.
    """
    torchs = REFERENCE if exactness == "exact" else FUSED
    is_shared = conditions.is_shared
    is_apart = conditions.is_apart
    kind = torch.device(device).type
    if conditions.kernels == "triton" or (conditions.kernels == "auto" and kind == "cuda"):
        if conditions.cache != "model":
            raise ConfigError(
                f'cache "{conditions.cache}" is not for the Triton kernels, which would run on {device}: leave it out, '
                'or choose device "cpu" or kernels "torch"'
            )
        known = TRITON_MECHANISMS - (UNSHARED if is_shared else frozenset())
        kernels = "the Triton kernels" + " of several ranks" * is_shared
        missing = APART if is_apart else lacking(conditions.needed, known, kernels)
        for size, num_queries in ((head_dim, group), *other_heads):
            missing = missing or triton_fault(
                device, dtype=dtype, head_dim=size, group=num_queries, is_shared=is_shared
            )
        if conditions.kernels == "triton" and missing is not None:
            raise ConfigError(f'kernels "triton" cannot run: {missing}. Choose "auto", or change what is missing')
        return BackendChoice(backend=torchs if missing else triton_backend(), missing=missing)
    if conditions.kernels == "auto" and kind == "cpu" and dtype in NATIVE_DTYPES:
        missing = native_obstacle(conditions)
        native = EIGHT_BIT_INPUTS if conditions.inputs == "int8" else NATIVE
        return BackendChoice(backend=torchs if missing else native, missing=missing)
    return BackendChoice(backend=torchs, missing=None)


def triton_backend() -> Backend:
    """The GPU backend. It is imported only here, because it needs Triton, which may be missing."""
    backend: Backend = import_module("forerun.backends.gpu.backend").TRITON
    return backend


def kernel_fault(error: Exception) -> str | None:
    """Triton's message if a kernel needs more of a resource than this GPU has; None for any other error."""
    errors = sys.modules.get("triton.runtime.errors")
    return str(error) if errors is not None and isinstance(error, errors.OutOfResources) else None
