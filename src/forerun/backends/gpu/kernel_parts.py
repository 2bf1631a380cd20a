"""Common parts of all kernels: products, waiting for the previous kernel, and launch options.

Every kernel follows these rules, so that the exact mode costs nothing:

* A row's result is computed by the same operations in the same order whatever the number of rows. Rows are grouped in
  tiles of ROW_TILE; a tile that is not full is padded, so that the matrix units always get the same shape.
* Work is divided between programs by the model's shape and by the position in the text, never by the number of rows.
  The program that finishes last joins the parts in order. There are no floating-point atomics.
* Only matrix units use fused multiply-add (`enable_fp_fusion` is off), so that an expression has the same bits in every
  kernel that contains it.

The compile-time parameters of a kernel are one named tuple in capitals (SHAPE, NORM, TREE). Triton 3.6 treats its
fields as plain numbers, so a field must be bound to a `tl.constexpr` before it is used in a shape or `static_range`.

Numbers that differ between passes or layers are not specialised on (`do_not_specialize`), since otherwise a kernel
would be compiled again for one row and for sixteen.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, Final

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

ROW_TILE: Final = 16  # The fewest rows that one matrix instruction takes.
ROWS = tl.constexpr(ROW_TILE)
IS_EMULATED: Final = bool(triton.knobs.runtime.interpret)  # Kernels run in Triton's interpreter, on a CPU.
EMULATED = tl.constexpr(IS_EMULATED)


@triton.jit
def product(a, b, sums):
    """sums + a b in float32.

    The interpreter has no bfloat16 products, and the rounding of its float32 products depends on the row's position.
    Float64 products, rounded once, avoid this.
    """
    if EMULATED:
        exact = tl.dot(a.to(tl.float64), b.to(tl.float64), input_precision="ieee", out_dtype=tl.float64)
        return (exact + sums).to(tl.float32)
    else:
        return tl.dot(a, b, sums, input_precision="ieee")


@triton.jit
def no_tiles():
    """An empty tuple, to which tiles are added."""
    return ()


@triton.jit
def await_inputs(OVERLAPS: tl.constexpr):
    """Wait until the previous kernel has finished, and allow the next one to start.

    With programmatic dependent launch a kernel starts while the previous one still runs. Before this call it may read
    weights, which no kernel writes, and data written before the previous kernel began, as attention does: every kernel
    waits before it allows the next one to start. It may not read anything else or write anything.
    """
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()


def launch_options(*, num_warps: int, num_stages: int = 1, overlaps: bool = False) -> dict[str, Any]:
    """Launch options of a kernel; `overlaps` must also be passed to the kernel as OVERLAPS."""
    options = {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": False}
    return {**options, "launch_pdl": True} if overlaps else options


def shared_limit() -> int:
    """Bytes of shared memory that a program may have on the current device."""
    return 1 << 30 if IS_EMULATED else _shared_limit(triton.runtime.driver.active.get_current_device())


@cache
def _shared_limit(device: int) -> int:
    return int(triton.runtime.driver.active.utils.get_device_properties(device)["max_shared_mem"])


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Launch kernels on this device within the context; Triton uses the current device, wherever the tensors are."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
