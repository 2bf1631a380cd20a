"""Room on a disk for what is fetched."""

import errno
import logging
import shutil
from pathlib import Path
from typing import Final

from forerun.core.errors import CheckpointError

logger = logging.getLogger(__name__)

FULL: Final = "No space left on device"  # Linux's and macOS's text, for libraries that keep no number


class NoRoomError(CheckpointError):
    """A disk has less room than what is fetched needs."""


def free_bytes(folder: Path) -> int:
    """Room on the disk that a folder is on, or will be once it is made."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def require_room(folder: Path, num_bytes: int, *, variable: str) -> None:
    """Say what is needed and what there is, and refuse to begin what will not fit.

    Args:
        variable: of the environment, which names another folder.

    Raises:
        NoRoomError: the disk has less room than that.
    """
    free = free_bytes(folder)
    if free < num_bytes:
        raise no_room(folder, num_bytes, variable=variable)
    if num_bytes > 0:
        logger.warning("this needs %s in %s, %s are free", gigabytes(num_bytes), folder, gigabytes(free))


def no_room(folder: Path, num_bytes: int, *, variable: str) -> NoRoomError:
    """What is needed, what there is, and what to do."""
    return NoRoomError(
        f"the model needs {gigabytes(num_bytes)} in {folder}, {gigabytes(free_bytes(folder))} are free: free some, or "
        f"set {variable} to a folder on another disk"
    )


def is_full(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is that of a full disk."""
    while error is not None:
        if getattr(error, "errno", None) == errno.ENOSPC or FULL in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def gigabytes(num_bytes: int) -> str:
    """Bytes for people, in the units that disks are sold in: 1.12 GB."""
    return f"{num_bytes / 1e9:.2f} GB"
