"""Files and folders that one process at a time may write to. The system lets go of them however a process ends."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forerun.core.errors import ConfigError

logger = logging.getLogger(__name__)


def lock(descriptor: int, *, waits: bool = False) -> None:
    """Hold an open file or folder until it is closed. Windows has no such lock: nothing is held there.

    Raises:
        BlockingIOError: another one holds it, and is not waited for.
        OSError: its file system has no locks.
    """
    if sys.platform == "win32":
        return
    from fcntl import LOCK_EX, LOCK_NB, flock

    flock(descriptor, LOCK_EX if waits else LOCK_EX | LOCK_NB)


def hold(path: Path) -> int | None:
    """A descriptor of the folder, which is made where it is missing. No other process may hold it until it is closed.

    Raises:
        ConfigError: another one holds it, or it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        if sys.platform == "win32":
            return None
        descriptor = os.open(path, os.O_RDONLY)
        try:
            lock(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
    except BlockingIOError as error:
        raise ConfigError(f"another process writes to {path}: let it end, or give another folder to --out") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error}): give another folder to --out") from error
    return descriptor


@contextmanager
def held(folder: Path, doing: str = "") -> Iterator[None]:
    """The same, but another process that holds the folder is waited for.

    Args:
        doing: what that one does, for a line of the log; empty where it never takes long.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            lock(descriptor)
        except BlockingIOError:
            if doing:
                logger.warning("waiting for another process that %s %s", doing, folder)
            lock(descriptor, waits=True)
        yield
    finally:
        os.close(descriptor)
