"""Which CPU this is, and what torch can do on it."""

import platform
from pathlib import Path
from typing import Final

import torch

CPU_INFO: Final = Path("/proc/cpuinfo")


def cpu_model() -> str:
    """The CPU's name; its architecture where the system does not report it."""
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def has_fast_bfloat16() -> bool:
    """True where oneDNN multiplies bfloat16. Elsewhere torch emulates it, slower than it multiplies float32."""
    return torch._C._has_mkldnn and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
