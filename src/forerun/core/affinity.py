"""Which cores a thread may run on, where the system knows such a limit."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager


def own_cores() -> list[int]:
    """The cores the calling thread may use; all of the machine's where the system knows no such limit."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


@contextmanager
def thread_on(cores: Collection[int]) -> Iterator[None]:
    """Keep the calling thread, and what it starts meanwhile, on these cores, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
