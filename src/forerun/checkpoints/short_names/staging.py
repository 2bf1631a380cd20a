"""A folder that one process at a time writes to, and where nothing half written stays."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

logger = logging.getLogger(__name__)


@contextmanager
def staging_folder(folder: Path) -> Iterator[Path]:
    """An empty folder for what is not whole yet, removed afterwards; what a killed process left is removed first."""
    for left in folder.glob(".part-*"):
        rmtree(left, ignore_errors=True)
    staging = Path(mkdtemp(prefix=".part-", dir=folder))
    try:
        yield staging
    finally:
        rmtree(staging, ignore_errors=True)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """One process at a time; the system lets go of the folder however this process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    if sys.platform == "win32":
        yield
        return
    from fcntl import LOCK_EX, LOCK_NB, flock

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            flock(descriptor, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            logger.warning("waiting for another process that fetches into %s", folder)
            flock(descriptor, LOCK_EX)
        yield
    finally:
        os.close(descriptor)
