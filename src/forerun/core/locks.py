"""Locks on files and folders that only one process at a time may write to.

The operating system releases a lock when its process ends, even if the process is killed.
"""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from forerun.core.errors import ConfigError

logger = logging.getLogger(__name__)


def lock(descriptor: int, *, waits: bool = False) -> None:
    """Lock an open file or folder until it is closed. On Windows, which has no such locks, this does nothing.

    Args:
        waits: wait until another process releases the lock.

    Raises:
        BlockingIOError: another process holds the lock, and `waits` is false.
        OSError: the file system has no locks.
    """
    if sys.platform == "win32":
        return
    from fcntl import LOCK_EX, LOCK_NB, flock

    flock(descriptor, LOCK_EX if waits else LOCK_EX | LOCK_NB)


def hold(path: Path) -> ExitStack:
    """Lock a folder, which is created if it is missing, until the result is closed. On Windows nothing is locked.

    Raises:
        ConfigError: another process holds the lock, or the folder cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with ExitStack() as opened:
            if sys.platform != "win32":
                descriptor = os.open(path, os.O_RDONLY)
                opened.callback(os.close, descriptor)
                lock(descriptor)
            return opened.pop_all()
    except BlockingIOError as error:
        raise ConfigError(
            f"another process writes to {path}: wait until it ends, or give another folder to --out"
        ) from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error}): give another folder to --out") from error


@contextmanager
def held(folder: Path, doing: str = "") -> Iterator[None]:
    """Lock a folder, which is created if it is missing, for the block; wait while another process holds the lock.

    Args:
        doing: what that process does, for a log line such as "fetches into"; empty if the wait is always short.
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
