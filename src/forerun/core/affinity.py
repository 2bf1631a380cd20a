"""The cores that a thread may run on, and the CPU quota of its container."""

import os
import re
from collections.abc import Callable, Collection
from math import floor, inf
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

V1_FILES: Final = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
V2_FILE: Final = "cpu.max"  # "quota period" in microseconds; "max" means no quota


def own_cores() -> list[int]:
    """The cores that the calling thread may use; all cores if the system has no affinity."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """How many cores can be kept busy: those that the calling thread may use, or fewer if its container has a quota.

    One more thread makes a pass several times slower, because all threads wait for it while it is throttled. The quota
    is rounded to the nearest number: with a quota of 1, two threads generated 36 tokens/s and one thread 51, without a
    quota two threads generated 69, so two threads are faster from a quota of about 1.5.
    """
    return max(1, floor(min(len(own_cores()), cpu_quota()) + 0.5))


def cpu_quota(root: Path = Path("/")) -> float:
    """CPU seconds per second that this process may use: the smallest quota of its control groups and their parents.

    Infinity if there is no quota, or the system has no quotas.

    Args:
        root: the folder that contains /proc and the control groups.
    """
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return inf
    quotas = [inf]
    for mount in mounts:
        before, _, after = mount.partition(" - ")
        if not re.match(r"cgroup2 |cgroup .*\bcpu(,|$)", after):
            continue
        name = "" if after.startswith("cgroup2") else "cpu"
        mount_root, mount_point = (plain(field) for field in before.split()[3:5])
        for group in groups:
            _, names, path = group.split(":", 2)
            if name in names.split(","):
                top = root / mount_point.lstrip("/")
                quotas += [quota_of(folder) for folder in folders_up(top, path, mount_root)]
    return min(quotas)


def folders_up(top: Path, path: str, mount_root: str) -> list[Path]:
    """The folders of a control group and of its parents that are visible in a mount.

    In a container the mount's root may be the container's own group, whose path is that on the host.
    """
    inside = os.path.relpath(path, mount_root)
    folder = top if inside.startswith("..") else top / inside
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(top))]


def quota_of(folder: Path) -> float:
    """The quota of one control group, without its parents'; infinity if it has none."""
    try:
        if (folder / V2_FILE).exists():
            quota, period = (folder / V2_FILE).read_text().split()
        else:
            quota, period = ((folder / name).read_text().strip() for name in V1_FILES)
        return int(quota) / int(period) if int(quota) > 0 else inf
    except (OSError, ValueError, ZeroDivisionError):
        return inf


def plain(text: str) -> str:
    """Decode a path of mountinfo, in which spaces and similar characters are written as octal numbers."""
    return re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), text)


def run_on(cores: Collection[int], work: Callable[[], T]) -> T:
    """Do the work with the calling thread, and threads it starts, bound to these cores; unbound if there are none, or
    the system has no affinity.

    An interrupt cannot leave the thread bound: Python handles signals when a call has returned and when a function
    begins, and neither happens between the work and the call that restores the cores. In a context manager written in
    Python it could happen.
    """
    if not cores or not hasattr(os, "sched_setaffinity"):
        return work()
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cores)
        return work()
    finally:
        os.sched_setaffinity(0, before)
