"""What every kernel here begins with: products, waiting for the kernel before, and how a kernel is launched.

Rules that make the exact mode free of charge, kept by every kernel:

* A row's result is computed by the same operations in the same order whatever the number of rows. Rows stand in tiles
  of ROW_TILE; a tile that is not full is padded, so that the matrix units see one shape only.
* Work that is divided between programs is divided by the model's shape and by the place in the text, never by the
  number of rows; parts are joined in order by the program that finishes last. No floating-point atomics.
* Fused multiply-add is left to the matrix units (`enable_fp_fusion` is off), so that an expression has the same bits in
  every kernel that contains it.

What a kernel is compiled for comes as one named tuple in capitals (SHAPE, NORM, TREE). Its fields are plain numbers to
Triton 3.6: where a shape or `static_range` takes one, it is bound to a `tl.constexpr` of its own first.

Numbers that differ from pass to pass or from layer to layer are not specialised on (`do_not_specialize`): else a kernel
would be compiled anew for one row, and again for sixteen.
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

    The interpreter knows no bfloat16 products, and its float32 ones round by where a row lies. Those of float64,
    rounded once, do not.
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
    """Wait until the kernel before has finished, and let the next one be loaded meanwhile.

    With programmatic dependent launch a kernel starts while the one before still runs. Before this call it may read
    weights, which no kernel writes, and, as attention does, what was written before the kernel before began: every
    kernel waits before it lets the next one start. Nothing else may be read, and nothing written.
    """
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()


def launch_options(*, num_warps: int, num_stages: int = 1, overlaps: bool = False) -> dict[str, Any]:
    """How to launch a kernel; `overlaps` must also be passed to the kernel as OVERLAPS."""
    options = {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": False}
    return {**options, "launch_pdl": True} if overlaps else options


def shared_limit() -> int:
    """Bytes of shared memory that a program may have on the current device."""
    return 1 << 30 if IS_EMULATED else _shared_limit(triton.runtime.driver.active.get_current_device())


@cache
def _shared_limit(device: int) -> int:
    return int(triton.runtime.driver.active.utils.get_device_properties(device)["max_shared_mem"])


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Within, kernels are launched on this device: Triton takes the current one, wherever the tensors are."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
