"""Which cores a thread may run on, and how much of them a container grants."""

import os
import re
from collections.abc import Callable, Collection
from math import floor, inf
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

V1_FILES: Final = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
V2_FILE: Final = "cpu.max"  # "quota period" in microseconds; "max" is no quota


def own_cores() -> list[int]:
    """The cores the calling thread may use; all of the machine's where the system has no affinity."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """How many cores can be kept busy: those the calling thread may use, or as many as its container's quota pays for.

    A thread more than that makes a pass several times slower, since all wait for it while it is not let run. A part of
    a core counts from a half on: two threads with a quota of one wrote 36 tokens/s, one 51, and without a quota 69, so
    that the two are worth it from about 1.5.
    """
    return max(1, floor(min(len(own_cores()), cpu_quota()) + 0.5))


def cpu_quota(root: Path = Path("/")) -> float:
    """Processor seconds per second that this process is granted: the least of its control groups' and their parents'.

    Infinity where there is no quota, or the system has no quotas.

    Args:
        root: where the files of /proc and of the control groups are.
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
    """The folder of a control group and those of its parents, as far as a mount shows them.

    A container may see its own group as the mount's root, under whatever name the host has for it.
    """
    inside = os.path.relpath(path, mount_root)
    folder = top if inside.startswith("..") else top / inside
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(top))]


def quota_of(folder: Path) -> float:
    """The quota of one control group, without its parents'; infinity where it has none."""
    try:
        if (folder / V2_FILE).exists():
            quota, period = (folder / V2_FILE).read_text().split()
        else:
            quota, period = ((folder / name).read_text().strip() for name in V1_FILES)
        return int(quota) / int(period) if int(quota) > 0 else inf
    except (OSError, ValueError, ZeroDivisionError):
        return inf


def plain(text: str) -> str:
    """A path of mountinfo, in which blanks and the like are written as octal numbers."""
    return re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), text)


def run_on(cores: Collection[int], work: Callable[[], T]) -> T:
    """Do the work with the calling thread, and what it starts meanwhile, on these cores, if any, where the system can.

    An interrupt cannot leave the thread there: Python acts on signals when a call has returned and at a function's
    beginning, and between the work and the call that puts the cores back there is neither. In a context manager
    written in Python there is.
    """
    if not cores or not hasattr(os, "sched_setaffinity"):
        return work()
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cores)
        return work()
    finally:
        os.sched_setaffinity(0, before)
