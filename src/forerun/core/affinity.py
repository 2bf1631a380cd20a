"""Which cores a thread may run on, where the system knows such a limit."""

import os
from collections.abc import Callable, Collection
from typing import TypeVar

T = TypeVar("T")


def own_cores() -> list[int]:
    """The cores the calling thread may use; all of the machine's where the system knows no such limit."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def run_on(cores: Collection[int], work: Callable[[], T]) -> T:
    """Do the work with the calling thread, and what it starts meanwhile, on these cores, where the system can.

    An interrupt cannot leave the thread there: Python acts on signals when a call has returned and at a function's
    beginning, and between the work and the call that puts the cores back there is neither. In a context manager
    written in Python there is.
    """
    if not hasattr(os, "sched_setaffinity"):
        return work()
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cores)
        return work()
    finally:
        os.sched_setaffinity(0, before)
