"""How many threads torch and the CPU kernels work with."""

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def on_threads(num_threads: int, work: Callable[[], T]) -> T:
    """Do the work with this many threads for torch's calls and the CPU kernels, from the calling thread.

    torch keeps the number for each thread, but a thread that uses torch for the first time takes over the last number
    that any thread has set; nothing here can keep that from a host program's own threads. No interrupt can leave torch
    with that number, see `runtime.affinity.run_on`.
    """
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(num_threads)
        return work()
    finally:
        torch.set_num_threads(before)


def on_one_thread(work: Callable[[], T]) -> T:
    """Do torch's work between two passes: its threads keep spinning after a call that was shared among them, and the
    next pass would have to share the cores with them, for milliseconds."""
    return on_threads(1, work)
