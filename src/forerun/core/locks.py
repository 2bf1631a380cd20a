"""Locks between processes, for files and folders that only one process at a time may write to.

A lock is an empty file, which its holder removes. The operating system releases the lock when its process ends, even if
the process is killed; then the file is left for the next holder.
"""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from forerun.core.errors import ConfigError

logger = logging.getLogger(__name__)

LOCK_NAME: Final = ".lock"  # in a locked folder


def lock(file: Path, *, waits: bool = False) -> ExitStack:
    """Lock this file, which is created, until the result is closed.

    Args:
        waits: wait until another process releases the lock.

    Raises:
        BlockingIOError: another process holds the lock, and `waits` is false.
        OSError: the file cannot be created.
    """
    from filelock import FileLock, Timeout  # takes 50 ms, and most commands lock nothing

    taken = FileLock(file, thread_local=False)
    try:
        taken.acquire(timeout=-1 if waits else 0)
    except Timeout:
        raise BlockingIOError(f"another process holds {file}") from None
    with ExitStack() as opened:
        opened.callback(taken.release)
        opened.callback(_remove, file)  # before the release, so that no later holder's file is removed
        return opened.pop_all()


def hold(folder: Path, file: Path | None = None) -> ExitStack:
    """Lock a folder, which is created if it is missing, until the result is closed.

    Args:
        file: of the lock; None: one in the folder.

    Raises:
        ConfigError: another process holds the lock, or the folder cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return lock(file or folder / LOCK_NAME)
    except BlockingIOError as error:
        raise ConfigError(
            f"another process writes to {folder}: wait until it ends, or give another folder to --out"
        ) from error
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written ({error}): give another folder to --out") from error


@contextmanager
def held(folder: Path, doing: str = "") -> Iterator[None]:
    """Lock a folder, which is created if it is missing, for the block; wait while another process holds the lock.

    Args:
        doing: what that process does, for a log line such as "fetches into"; empty if the wait is always short.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / LOCK_NAME
    try:
        taken = lock(file)
    except BlockingIOError:
        if doing:
            logger.warning("waiting for another process that %s %s", doing, folder)
        taken = lock(file, waits=True)
    with taken:
        yield


def _remove(file: Path) -> None:
    with suppress(OSError):  # Windows removes no open file; filelock does it after the release
        file.unlink()
