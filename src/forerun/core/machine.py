"""This machine: its processor and its memory."""

import os
import platform
from pathlib import Path
from typing import Final

MEMINFO: Final = Path("/proc/meminfo")
GROUP: Final = Path("/sys/fs/cgroup")  # a container's own
CPU_INFO: Final = Path("/proc/cpuinfo")


def free_memory_bytes() -> int | None:
    """Bytes that a new program can use; the total if the system does not report them; None if it reports neither."""
    if MEMINFO.is_file():
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text(encoding="ascii").splitlines())
        return min(int(lines["MemAvailable"].split()[0]) * 1024, _group_bytes())
    return memory_bytes()


def memory_bytes() -> int | None:
    """Bytes of this machine's memory; None if the system does not report them."""
    names = ("SC_PAGE_SIZE", "SC_PHYS_PAGES")
    if not set(names) <= set(getattr(os, "sysconf_names", ())):
        return None
    return os.sysconf(names[0]) * os.sysconf(names[1])


def _group_bytes() -> int:
    """Bytes that the memory limit of this process's control group still allows; 2^62 without a limit."""
    try:
        limit, used = ((GROUP / f"memory.{name}").read_text(encoding="ascii").strip() for name in ("max", "current"))
    except OSError:
        return 1 << 62
    return 1 << 62 if limit == "max" else max(0, int(limit) - int(used))


def cpu_model() -> str:
    """The CPU's name; its architecture if the system does not report the name."""
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def has_fast_bfloat16() -> bool:
    """Whether oneDNN multiplies bfloat16. Otherwise torch emulates it, which is slower than float32."""
    import torch  # commands that ask for the memory alone start without it

    return torch._C._has_mkldnn and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
