"""Divides the cores and GPUs of machines among replicas."""

import os
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from math import ceil
from pathlib import Path

from forerun.core.affinity import own_cores, usable_cores
from forerun.core.locks import lock


def cores_each(num_cores: Sequence[float], num_replicas: int) -> int:
    """Cores per replica, the most with which all replicas fit on the machines; 0 if there are fewer cores than
    replicas, which then share all cores.

    Args:
        num_cores: of each machine.
    """
    for share in range(int(max(num_cores, default=0)), 0, -1):
        if sum(int(number) // share for number in num_cores) >= num_replicas:
            return share
    return 0


def cores_of(cores: Sequence[int], num_replicas: int) -> list[list[int]]:
    """Adjacent cores for each replica of a machine."""
    bounds = [number * len(cores) // num_replicas for number in range(num_replicas + 1)]
    return [list(cores[low:high]) for low, high in pairwise(bounds)]


def claimed_cores(share: int, folder: Path | None = None) -> list[int]:
    """At least `share` cores of this machine that no other replica has; this process keeps them until it ends.

    Empty if the share is 0, all cores are taken, the locks cannot be used, or under a CPU quota, which limits time and
    not cores.

    Args:
        folder: of the locks, with which the replicas of a machine claim cores.
    """
    cores = own_cores()
    if not 1 <= share <= len(cores) or usable_cores() < len(cores):
        return []
    folder = folder or Path(tempfile.gettempdir()) / f"forerun-cores-{os.getuid() if hasattr(os, 'getuid') else ''}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        return next((part for part in cores_of(cores, len(cores) // share) if _claims(folder, part)), [])
    except PermissionError:  # another user made the folder
        return []


def _claims(folder: Path, cores: Sequence[int]) -> bool:
    """Lock all of these cores, or none."""
    held = []
    try:
        for core in cores:
            held.append(os.open(folder / str(core), os.O_RDWR | os.O_CREAT, 0o600))
            lock(held[-1])
    except BlockingIOError:
        for descriptor in held:
            os.close(descriptor)
        return False
    return True


def threads_of(share: int) -> int | None:
    """Threads of a replica with `share` cores if a container's CPU limit is below the number of visible cores, else
    None."""
    return None if usable_cores() >= len(own_cores()) else max(1, share)


def gpu_share(num_gpus: float, num_replicas: int) -> float:
    """Fraction of a GPU per replica: a whole one if there are enough GPUs, else the largest share that fits."""
    return 0.0 if num_gpus < 1 else 1 / ceil(num_replicas / int(num_gpus))
