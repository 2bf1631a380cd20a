"""Divides a machine's cores and GPUs among replicas."""

from collections.abc import Sequence
from itertools import pairwise
from math import ceil

from forerun.runtime.affinity import own_cores, usable_cores


def cores_of(cores: Sequence[int], num_replicas: int) -> list[list[int]]:
    """Adjacent cores for each replica; empty lists if there are fewer cores than replicas, so all share all cores."""
    if len(cores) < num_replicas:
        return [[] for _ in range(num_replicas)]
    bounds = [number * len(cores) // num_replicas for number in range(num_replicas + 1)]
    return [list(cores[low:high]) for low, high in pairwise(bounds)]


def threads_of(num_replicas: int) -> int | None:
    """Threads per replica if a container's CPU limit is below the number of visible cores, else None."""
    num_usable = usable_cores()
    return None if num_usable >= len(own_cores()) else max(1, num_usable // num_replicas)


def gpu_share(num_gpus: float, num_replicas: int) -> float:
    """Fraction of a GPU per replica: a whole one if there are enough GPUs, else the largest share that fits."""
    return 0.0 if num_gpus < 1 else 1 / ceil(num_replicas / int(num_gpus))
