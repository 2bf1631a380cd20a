"""This machine's total and free memory."""

import os
from pathlib import Path
from typing import Final

MEMINFO: Final = Path("/proc/meminfo")
GROUP: Final = Path("/sys/fs/cgroup")  # a container's own


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
