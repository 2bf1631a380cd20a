"""Finds, checks and loads the shared library of native kernels, once."""

import os
from collections.abc import Mapping, Sequence
from ctypes import CDLL, POINTER, c_bool, c_char_p, c_double, c_float, c_int, c_int64, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, Final

from forerun.backends.cpu.layouts import NativeOp, Pass, Shape

VERSION: Final = 20  # of the library's functions and structs, as cpp/dispatch.cpp states it
SUFFIXES: Final = (".so", ".dylib", ".dll")
FOLDER: Final = Path(__file__).parent
ROWS: Final = (c_void_p, c_int64, c_int, c_int, c_float, c_void_p)  # scores, stride, rows, columns, temperature, keys
SIGNATURES: Final[Mapping[str, Sequence[Any]]] = {  # the type of the result, then those of the arguments
    "tier": (c_char_p,),
    "select_tier": (c_int, c_char_p),
    "read": (c_uint64, c_void_p, c_int64, c_int),
    "multiply_adds": (c_int64, c_int, c_int64, c_int),
    "num_stops": (c_uint64,),
    "set_cores": (None, POINTER(c_int), c_int),
    "pack": (c_int64, c_void_p, c_void_p, c_int),
    "place": (c_int64, c_void_p, c_void_p, c_int),
    "free": (None, c_void_p),
    "linear": (None, c_void_p, c_void_p, c_int, c_void_p, c_void_p, c_int, c_int),
    "read_rows": (None, c_void_p, c_void_p, c_int, c_void_p),
    "program_new": (c_void_p, POINTER(Shape), POINTER(NativeOp), c_int, c_int),
    "program_free": (None, c_void_p),
    "program_set_buffers": (c_bool, c_void_p, c_void_p, c_int),
    "program_run": (c_bool, c_void_p, POINTER(Pass), c_int, c_void_p, c_int, c_int, c_int),
    "move_slots": (None, c_void_p, c_int, c_int64, c_int64, c_void_p, c_int, c_int64),
    "link_bytes": (c_int64, c_int, c_int64),
    "link_new": (c_void_p, c_void_p, c_int, c_int, c_int64, c_double),
    "link_free": (None, c_void_p),
    "link_lose": (None, c_void_p),
    "link_is_lost": (c_bool, c_void_p),
    "link_gather": (c_bool, c_void_p, c_void_p, c_int64, c_void_p),
    "sample_rows": (None, *ROWS, c_void_p, c_int),
    "topk_rows": (None, *ROWS, c_void_p, c_int, c_void_p, c_void_p, c_void_p, c_int),
}
REMEDY: Final = "install forerun again, from a wheel or with a C++17 compiler"


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


def sharing_fault() -> str | None:
    """Why this host has no anonymous shared memory, which other users cannot open by name; None if it has."""
    return None if hasattr(os, "memfd_create") else "ranks share memory on Linux only"


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
    """Declare the functions' result and argument types, so that a wrong call raises instead of crashing."""
    for name, (result, *arguments) in SIGNATURES.items():
        function = getattr(found, f"forerun_{name}")
        function.restype = result
        function.argtypes = tuple(arguments)
    return found
