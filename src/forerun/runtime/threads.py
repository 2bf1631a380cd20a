"""The number of threads of torch and the CPU kernels."""

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def on_threads(num_threads: int, work: Callable[[], T]) -> T:
    """Do the work with `num_threads` threads for torch and the CPU kernels.

    torch stores the number per thread, but a thread that uses torch for the first time inherits the last number that
    any thread has set; we cannot prevent that for a host program's own threads. An interrupt cannot leave torch with
    this number, see `runtime.affinity.run_on`.
    """
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(num_threads)
        return work()
    finally:
        torch.set_num_threads(before)


def on_one_thread(work: Callable[[], T]) -> T:
    """Do torch's work between two passes on one thread: torch's threads keep spinning for milliseconds after a parallel
    call, and would compete with the next pass for the cores."""
    return on_threads(1, work)
