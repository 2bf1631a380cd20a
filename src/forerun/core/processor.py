"""The CPU's name, and whether it has fast bfloat16."""

import platform
from pathlib import Path
from typing import Final

import torch

CPU_INFO: Final = Path("/proc/cpuinfo")


def cpu_model() -> str:
    """The CPU's name; its architecture if the system does not report the name."""
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def has_fast_bfloat16() -> bool:
    """Whether oneDNN multiplies bfloat16. Otherwise torch emulates it, which is slower than float32."""
    return torch._C._has_mkldnn and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
