"""The machine's cores: where the library's own threads run, and what they share."""

import os
from collections.abc import Callable, Sequence
from ctypes import c_int
from typing import Final, TypeVar

import torch

from forerun.kernels.native.binding import fault, library

T = TypeVar("T")
USUAL_CACHE_BYTES: Final = 32 << 20
ALL_CORES: Final = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def keep_pool_on(cores: Sequence[int]) -> None:
    """Keep the pool's threads on these cores from now on; none: on any that this process was started with.

    The thread that calls a kernel works too; it is its owner's to place.
    """
    named = tuple(cores) or ALL_CORES
    if named and fault() is None:
        library().forerun_set_cores((c_int * len(named))(*named), len(named))


def on_threads(num_threads: int, work: Callable[[], T]) -> T:
    """Do the work with so many threads for torch's calls and the kernels here, by the calling thread.

    torch keeps the number for each thread, but a thread that uses torch for the first time takes over the last number
    that any thread has set; nothing here can keep that from a host program's own threads. No interrupt can leave torch
    with that number, see `core.affinity.run_on`.
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


def last_cache_bytes() -> int:
    """Bytes of the last cache before memory; a usual number where the system does not say."""
    name = "SC_LEVEL3_CACHE_SIZE"
    known = os.sysconf(name) if name in getattr(os, "sysconf_names", ()) else 0
    return known if known > 0 else USUAL_CACHE_BYTES
