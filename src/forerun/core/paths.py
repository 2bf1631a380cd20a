"""Paths as users type them, and the folder for files that forerun can create or download again."""

import os
from errno import EINVAL
from pathlib import Path


def path_of(name: str) -> Path:
    """The path that a user typed; ~ is a home folder.

    Raises:
        OSError: no file can have this name, or there is no such home folder.
    """
    try:
        if b"\0" in os.fsencode(name):
            raise ValueError("it holds a byte of zeros")
        return Path(name).expanduser()
    except (ValueError, RuntimeError) as error:
        raise OSError(EINVAL, f"no file can have this name: {error}", name) from error


def cache_folder() -> Path:
    """FORERUN_CACHE, else forerun's folder in the user's cache.

    The API finds models by short name where the command downloaded them, so it reads these two variables outside cli/.
    """
    named = os.environ.get("FORERUN_CACHE")
    if named:
        return path_of(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "forerun"


def place_of_windows() -> dict[str, str]:
    """The environment variable that says where Windows is, without which no Python starts there; else none."""
    return {name: place for name, place in os.environ.items() if name.upper() == "SYSTEMROOT"}
