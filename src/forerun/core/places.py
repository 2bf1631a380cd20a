"""The folder for files that forerun can create or download again."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """FORERUN_CACHE, else forerun's folder in the user's cache.

    The API finds models by short name where the command downloaded them, so it reads these two variables outside cli/.
    """
    named = os.environ.get("FORERUN_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "forerun"


def place_of_windows() -> dict[str, str]:
    """The environment variable that says where Windows is, without which no Python starts there; else none."""
    return {name: place for name, place in os.environ.items() if name.upper() == "SYSTEMROOT"}
