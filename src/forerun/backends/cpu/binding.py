"""Finds, checks and loads the shared library of native kernels, once."""

from ctypes import CDLL, POINTER, c_bool, c_char_p, c_double, c_float, c_int, c_int64, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Final

from forerun.backends.cpu.layouts import NativeOp, Pass, Shape

VERSION: Final = 13  # of the library's functions and structs, as cpp/dispatch.cpp states it
SUFFIXES: Final = (".so", ".dylib", ".dll")
FOLDER: Final = Path(__file__).parent
REMEDY: Final = "install forerun again, from a wheel or where a C++17 compiler is"


@cache  # implemented in C, so later calls cost almost nothing
def library() -> CDLL:
    """The library. Requires that `fault` is None."""
    loaded = _load()
    assert isinstance(loaded, CDLL), loaded
    return loaded


def fault() -> str | None:
    """Why the native kernels are not available and what to do about it; None if they are."""
    loaded = _load()
    return loaded if isinstance(loaded, str) else None


@cache
def _load() -> CDLL | str:
    path = next((path for suffix in SUFFIXES if (path := FOLDER / f"libforerun_native{suffix}").exists()), None)
    if path is None:
        return f"the native kernels were not built when forerun was installed: {REMEDY}"
    try:
        found = CDLL(str(path))
    except OSError as error:
        return f"the native kernels in {path} cannot be loaded ({error}): {REMEDY}"
    if found.forerun_version() != VERSION:
        return f"the native kernels in {path} are of another version of forerun: {REMEDY}"
    return _declare(found)


def _declare(found: CDLL) -> CDLL:
    """Declare the functions' argument and result types, so that a wrong call raises instead of crashing."""
    found.forerun_tier.restype = c_char_p
    found.forerun_select_tier.argtypes = (c_char_p,)
    found.forerun_read.argtypes = (c_void_p, c_int64, c_int)
    found.forerun_read.restype = c_uint64
    found.forerun_multiply_adds.argtypes = (c_int, c_int64, c_int)
    found.forerun_multiply_adds.restype = c_int64
    found.forerun_num_stops.argtypes = ()
    found.forerun_num_stops.restype = c_uint64
    found.forerun_set_cores.argtypes = (POINTER(c_int), c_int)
    found.forerun_set_cores.restype = None
    found.forerun_pack.argtypes = (c_void_p, c_void_p, c_int)
    found.forerun_pack.restype = c_int64
    found.forerun_place.argtypes = (c_void_p, c_void_p, c_int)
    found.forerun_place.restype = c_int64
    found.forerun_free.argtypes = (c_void_p,)
    found.forerun_free.restype = None
    found.forerun_program_new.argtypes = (POINTER(Shape), POINTER(NativeOp), c_int, c_int)
    found.forerun_program_new.restype = c_void_p
    found.forerun_program_free.argtypes = (c_void_p,)
    found.forerun_program_free.restype = None
    found.forerun_program_set_buffers.argtypes = (c_void_p, c_void_p, c_int)
    found.forerun_program_set_buffers.restype = c_bool
    found.forerun_program_run.argtypes = (c_void_p, POINTER(Pass), c_int, c_void_p, c_int, c_int, c_int)
    found.forerun_program_run.restype = c_bool
    found.forerun_move_slots.argtypes = (c_void_p, c_int, c_int64, c_int64, c_void_p, c_int, c_int64)
    found.forerun_move_slots.restype = None
    found.forerun_link_bytes.argtypes = (c_int, c_int64)
    found.forerun_link_bytes.restype = c_int64
    found.forerun_link_new.argtypes = (c_void_p, c_int, c_int, c_int64, c_double)
    found.forerun_link_new.restype = c_void_p
    found.forerun_link_free.argtypes = found.forerun_link_lose.argtypes = (c_void_p,)
    found.forerun_link_free.restype = found.forerun_link_lose.restype = None
    found.forerun_link_is_lost.argtypes = (c_void_p,)
    found.forerun_link_is_lost.restype = c_bool
    found.forerun_link_gather.argtypes = (c_void_p, c_void_p, c_int64, c_void_p)
    found.forerun_link_gather.restype = c_bool
    rows = (c_void_p, c_int64, c_int, c_int, c_float, c_void_p)
    found.forerun_sample_rows.argtypes = (*rows, c_void_p, c_int)
    found.forerun_sample_rows.restype = None
    found.forerun_topk_rows.argtypes = (*rows, c_void_p, c_int, c_void_p, c_void_p, c_void_p, c_int)
    found.forerun_topk_rows.restype = None
    return found
