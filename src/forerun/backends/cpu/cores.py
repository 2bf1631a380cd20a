"""The machine's cores: where the library's own threads run, and what they share."""

import os
from collections.abc import Sequence
from ctypes import c_int
from typing import Final

from forerun.backends.cpu.binding import fault, library

USUAL_CACHE_BYTES: Final = 32 << 20
ALL_CORES: Final = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def keep_pool_on(cores: Sequence[int]) -> None:
    """Keep the pool's threads on these cores from now on; none: on any that this process was started with.

    The thread that calls a kernel works too; it is its owner's to place.
    """
    named = tuple(cores) or ALL_CORES
    if named and fault() is None:
        library().forerun_set_cores((c_int * len(named))(*named), len(named))


def last_cache_bytes() -> int:
    """Bytes of the last-level cache; a usual number where the system does not report it."""
    name = "SC_LEVEL3_CACHE_SIZE"
    known = os.sysconf(name) if name in getattr(os, "sysconf_names", ()) else 0
    return known if known > 0 else USUAL_CACHE_BYTES
