"""Checks that a disk has enough free space for a download."""

import errno
import logging
import shutil
from pathlib import Path
from typing import Final

from forerun.core.errors import CheckpointError

logger = logging.getLogger(__name__)

FULL: Final = "No space left on device"  # the message of Linux and macOS, for libraries that drop the error number


class NoRoomError(CheckpointError):
    """A disk has too little free space for a download."""


def free_bytes(folder: Path) -> int:
    """Free bytes on the disk of a folder, which need not exist yet."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def require_room(folder: Path, num_bytes: int, *, variable: str) -> None:
    """Log the needed and the free space, and refuse a download that does not fit.

    Args:
        variable: the environment variable that sets another folder, for the error message.

    Raises:
        NoRoomError: the disk has less than `num_bytes` free.
    """
    free = free_bytes(folder)
    if free < num_bytes:
        raise no_room(folder, num_bytes, variable=variable)
    if num_bytes > 0:
        logger.warning("this needs %s in %s, %s are free", gigabytes(num_bytes), folder, gigabytes(free))


def no_room(folder: Path, num_bytes: int, *, variable: str) -> NoRoomError:
    """The error that says how much space is needed, how much is free, and what to do."""
    return NoRoomError(
        f"the model needs {gigabytes(num_bytes)} in {folder}, but {gigabytes(free_bytes(folder))} are free: free some "
        f"space, or set {variable} to a folder on another disk"
    )


def is_full(error: BaseException | None) -> bool:
    """Whether an error, or one of its causes, means that the disk is full."""
    while error is not None:
        if getattr(error, "errno", None) == errno.ENOSPC or FULL in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def gigabytes(num_bytes: int) -> str:
    """Bytes as text in decimal gigabytes, as disks are sold: 1.12 GB."""
    return f"{num_bytes / 1e9:.2f} GB"
