"""The machine's cores: pinning of the library's threads, and the size of the last-level cache."""

import os
from collections.abc import Sequence
from ctypes import c_int
from typing import Final

from forerun.backends.cpu.binding import fault, library

USUAL_CACHE_BYTES: Final = 32 << 20
ALL_CORES: Final = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def keep_pool_on(cores: Sequence[int]) -> None:
    """Pin the pool's threads to these cores; without any, to all cores that this process was started with.

    The thread that calls a kernel also works, but is not pinned here.
    """
    named = tuple(cores) or ALL_CORES
    if named and fault() is None:
        library().forerun_set_cores((c_int * len(named))(*named), len(named))


def last_cache_bytes() -> int:
    """Bytes of the last-level cache; a typical value if the system does not report it."""
    name = "SC_LEVEL3_CACHE_SIZE"
    known = os.sysconf(name) if name in getattr(os, "sysconf_names", ()) else 0
    return known if known > 0 else USUAL_CACHE_BYTES
