"""The dtype that a model is computed in. It does not import torch, so `forerun inspect` takes less than a second."""

from dataclasses import dataclass
from typing import Final

from forerun.backends.cpu.binding import fault as native_fault
from forerun.backends.cpu.binding import sharing_fault
from forerun.core.config import DTypeName, InputsName, KernelsName
from forerun.core.mechanisms import (
    BORROWING,
    CAP,
    CLAMPED,
    CONVOLUTION,
    DELTA_NET,
    EMBEDDING,
    EXPERTS,
    GELU,
    LAYER_INPUTS,
    LAYER_SCALE,
    NORMS,
    OTHER_HEADS,
    OUTPUT_GATE,
    QUERIES,
    SHARED_EXPERT,
    SINKS,
    VALUE_NORM,
    WHOLE_NORMS,
    WINDOW,
    lacking,
)
from forerun.core.model_spec import CacheFormat

APART: Final = "ranks of several hosts have no shared memory, through which these kernels add up their partial results"
NATIVE: Final = ("float32", "bfloat16")
TRITON_MECHANISMS: Final = frozenset({
    WINDOW, QUERIES, EMBEDDING, NORMS, WHOLE_NORMS, GELU, SINKS, EXPERTS, CLAMPED, CAP, VALUE_NORM, LAYER_SCALE,
    LAYER_INPUTS, BORROWING, OTHER_HEADS,
})  # fmt: skip
NATIVE_MECHANISMS: Final = TRITON_MECHANISMS | {CONVOLUTION, DELTA_NET, OUTPUT_GATE, SHARED_EXPERT}
UNSHARED: Final = frozenset({WHOLE_NORMS})  # mechanisms that neither they nor Triton's kernels compute across ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The conditions besides the model and its device on which the choice of kernels depends.

    Args:
        kernels: the requested kernels.
        is_shared: several ranks share the model, so kernels exchange results.
        is_apart: some of the ranks are on other hosts.
        inputs: the format of the inputs that CPU kernels multiply quantised weights with.
        cache: the format of keys and values.
        needed: the mechanisms that the model needs besides Llama's, see `core.mechanisms`.
    """

    kernels: KernelsName = "auto"
    is_shared: bool = False
    is_apart: bool = False
    inputs: InputsName = "int16"
    cache: CacheFormat = "model"
    needed: frozenset[str] = frozenset()


USUAL: Final = Conditions()


def compute_dtype(
    wanted: DTypeName, *, stored: str, is_quantised: bool, device: str, conditions: Conditions = USUAL
) -> str:
    """The dtype to compute in. "auto" is the dtype of the stored weights, unless this CPU would only emulate it.

    With weights of 8 or 4 bits, a CPU uses bfloat16 whatever the checkpoint's dtype, unless it would only emulate it:
    it loses no noticeable accuracy and halves the cache.
    """
    if wanted != "auto":
        return wanted
    if device != "cpu" or not (is_quantised or stored in ("bfloat16", "float16")):
        return stored
    if runs_native("bfloat16", device, conditions) or has_fast_bfloat16():
        return "bfloat16"
    return "float64" if stored == "float64" else "float32"


def runs_native(dtype: str, device: str, conditions: Conditions = USUAL) -> bool:
    """True if the C library runs a model of this dtype."""
    is_possible = device.partition(":")[0] == "cpu" and dtype in NATIVE
    return is_possible and conditions.kernels == "auto" and native_obstacle(conditions) is None


def native_obstacle(conditions: Conditions) -> str | None:
    """Why the C library cannot run a model; None if it can."""
    if conditions.is_apart:
        return APART
    known = NATIVE_MECHANISMS - (UNSHARED if conditions.is_shared else frozenset())
    missing = lacking(conditions.needed, known, "the native kernels" + " of several ranks" * conditions.is_shared)
    return missing or native_fault() or (sharing_fault() if conditions.is_shared else None)


def has_fast_bfloat16() -> bool:
    from forerun.core.machine import has_fast_bfloat16 as ask  # imports torch

    return ask()
