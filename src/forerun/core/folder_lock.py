"""A folder that one process at a time may write to."""

import os
import sys
from pathlib import Path

from forerun.core.errors import ConfigError


def hold(path: Path) -> int | None:
    """Lock a folder, which is created if missing, and return its descriptor. Closing the descriptor unlocks it.

    Two processes that write the same files would damage them. The system unlocks the folder however this process ends.

    Raises:
        ConfigError: another process holds the lock, or the folder cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        if sys.platform == "win32":
            return None
        from fcntl import LOCK_EX, LOCK_NB, flock

        descriptor = os.open(path, os.O_RDONLY)
        try:
            flock(descriptor, LOCK_EX | LOCK_NB)
        except BaseException:
            os.close(descriptor)
            raise
    except BlockingIOError as error:
        raise ConfigError(f"another process writes to {path}: let it end, or give another folder to --out") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error}): give another folder to --out") from error
    return descriptor
