"""Where forerun keeps what it can make or fetch again."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """FORERUN_CACHE, else forerun's folder in the user's cache.

    A model's short name leads the API to what the command fetched, so these two variables are read outside cli/.
    """
    named = os.environ.get("FORERUN_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "forerun"
