"""How a machine's cores and GPUs are shared among replicas."""

from collections.abc import Sequence
from itertools import pairwise
from math import ceil

from forerun.runtime.affinity import own_cores, usable_cores


def cores_of(cores: Sequence[int], num_replicas: int) -> list[list[int]]:
    """Cores for each replica, side by side; none for any where there are too few, since then all share them all."""
    if len(cores) < num_replicas:
        return [[] for _ in range(num_replicas)]
    bounds = [number * len(cores) // num_replicas for number in range(num_replicas + 1)]
    return [list(cores[low:high]) for low, high in pairwise(bounds)]


def threads_of(num_replicas: int) -> int | None:
    """Threads for each replica where a container grants fewer cores than it shows; else None, as the cores say it."""
    num_usable = usable_cores()
    return None if num_usable >= len(own_cores()) else max(1, num_usable // num_replicas)


def gpu_share(num_gpus: float, num_replicas: int) -> float:
    """How much of a GPU each replica has: a whole one, or as much as lets all replicas find room on the GPUs there."""
    return 0.0 if num_gpus < 1 else 1 / ceil(num_replicas / int(num_gpus))
