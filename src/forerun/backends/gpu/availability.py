"""Checks whether the Triton kernels can run here, before they are imported."""

import importlib
import subprocess
from itertools import permutations
from types import ModuleType
from typing import Final

import torch

from forerun.backends.gpu.shared_memory import MOST_MATRIX_ROWS, WIDE_HEAD_BYTES, WIDEST_WHOLE, attention_bytes
from forerun.core.optional_packages import install_command

OLDEST_TRITON: Final = (3, 6)
OLDEST_CAPABILITY: Final = (8, 0)  # It brought bfloat16 matrix units and asynchronous copies to shared memory.
DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
HEAD_DIMS: Final = (16, 32, 64, 128, 256, 512)


def fault(device: str, *, dtype: torch.dtype, head_dim: int, group: int = 1, is_shared: bool = False) -> str | None:
    """Why the Triton kernels cannot run here; None if they can.

    Triton is imported only after all cheaper checks have passed.

    Args:
        group: query heads per key head.
        is_shared: several GPUs share the model, so they must be able to access each other's memory.
    """
    kind = torch.device(device).type
    if dtype not in DTYPES:
        return f"the Triton kernels do not compute in {str(dtype).removeprefix('torch.')}"
    if head_dim not in HEAD_DIMS:
        return f"the Triton kernels need heads of 16, 32, 64, 128, 256 or 512 numbers, and these have {head_dim}"
    if dtype == torch.float32 and head_dim > WIDEST_WHOLE:
        return f"the Triton kernels do not compute heads of {head_dim} numbers in float32"
    most = MOST_MATRIX_ROWS
    if head_dim > WIDEST_WHOLE or (dtype == torch.float32 and head_dim * dtype.itemsize > WIDE_HEAD_BYTES):
        most //= 2  # There are too few registers for more.
    if group > most:
        return (
            f"the Triton kernels take at most {most} query heads of a key head in {str(dtype).removeprefix('torch.')} "
            f"with heads of {head_dim} numbers, and these have {group}"
        )
    if kind not in ("cpu", "cuda"):
        return f"the Triton kernels do not run on {kind}"
    if kind == "cuda":
        missing = _cuda_fault(device) or _memory_fault(device, dtype, head_dim)
        missing = missing or (_exchange_fault() if is_shared else None)
        if missing is not None:
            return missing
    return _triton_fault(kind)


def _cuda_fault(device: str) -> str | None:
    if torch.version.cuda is None or not torch.cuda.is_available():
        return "there is no CUDA device"
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST_CAPABILITY:
        needed, found = (".".join(map(str, pair)) for pair in (OLDEST_CAPABILITY, capability))
        return f"the GPU has compute capability {found}, and the Triton kernels need {needed}"
    return None


def _memory_fault(device: str, dtype: torch.dtype, head_dim: int) -> str | None:
    properties = torch.cuda.get_device_properties(device)
    limit: int = properties.shared_memory_per_block_optin  # type: ignore[attr-defined]
    needed = attention_bytes(head_dim, dtype.itemsize, num_stages=1)
    if needed <= limit:
        return None
    return (
        f"attention with heads of {head_dim} numbers in {str(dtype).removeprefix('torch.')} takes {needed >> 10} KiB "
        f"of shared memory, and a program has {limit >> 10} KiB on this GPU"
    )


def _exchange_fault() -> str | None:
    """Check all GPUs of the machine, so that every rank gets the same answer."""
    if not hasattr(getattr(torch._C, "_distributed_c10d", None), "_SymmetricMemory"):
        return "this build of torch has no symmetric memory, through which the Triton kernels of several ranks add sums"
    count = torch.cuda.device_count()
    for one, other in permutations(range(count), 2):
        if not torch.cuda.can_device_access_peer(one, other):
            return (
                f"GPU {one} cannot reach the memory of GPU {other}, which the Triton kernels of a shared model need: "
                "CUDA_VISIBLE_DEVICES can leave GPUs out"
            )
    return None


def _triton_fault(kind: str) -> str | None:
    try:
        triton = importlib.import_module("triton")
    except ImportError:
        return f"Triton is not installed: {install_command('triton')}"
    if _version(triton) < OLDEST_TRITON:
        return f"Triton {triton.__version__} is too old: {'.'.join(map(str, OLDEST_TRITON))} or later is needed"
    is_emulated = bool(triton.knobs.runtime.interpret)
    if kind == "cpu":
        return None if is_emulated else "there is no CUDA device"
    if is_emulated:
        return "Triton's interpreter is on, which computes on the CPU"
    return _driver_fault(triton)


def _version(triton: ModuleType) -> tuple[int, ...]:
    return tuple(int(part) for part in str(triton.__version__).split(".")[:2])


def _driver_fault(triton: ModuleType) -> str | None:
    """Triton builds a small C library at its first use of a GPU, which needs a compiler and Python's headers."""
    try:
        triton.runtime.driver.active.get_current_target()
    except subprocess.CalledProcessError as error:
        return f"Triton could not build its launcher ({error}): a C compiler and Python's headers are needed"
    except (RuntimeError, OSError, AssertionError) as error:
        return f"Triton does not start: {error}"
    return None
