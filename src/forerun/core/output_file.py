"""Write files atomically, and check before any work that they can be written."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from stat import S_IMODE
from time import time
from typing import Final

from forerun.core.errors import ConfigError

PART: Final = ".part"
OLD_S: Final = 3600.0  # a file that was not written to for so long is no longer being written
ROOM: Final = b"\n" * 4096  # written to test whether a folder can be written to


class UnwritableError(ConfigError):
    """A file that cannot be written.

    Args:
        reason: what keeps it from being written.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} cannot be written ({reason}): name another file")
        self.what = f"{path} cannot be written ({reason})"


def require_writable(path: Path, *, needs_folder: bool = False) -> None:
    """Refuse a path to which no file can be written; an existing file is not changed.

    Args:
        needs_folder: whether the folder must exist already; otherwise it will be created.

    Raises:
        ConfigError: the file cannot be written; the message says why.
    """
    try:
        path = path.resolve()
        if path.is_dir():
            raise unwritable(path, "it is a folder")
        _require_changeable(path)
        if _is_replaceable(path):
            _try_folder(path, needs_folder=needs_folder)
    except (OSError, RuntimeError) as error:
        raise unwritable(path, error) from error


def write_whole(path: Path, content: str | bytes, *, makes_folder: bool = False, is_private: bool = False) -> None:
    """Write a file atomically: other threads and processes, even writers, see all of it or its previous contents.

    The same holds after a power failure. If the path is a link, its target is replaced.

    Args:
        is_private: make a new file readable only by its owner.

    Raises:
        ConfigError: it cannot be written.
    """
    raw = content.encode() if isinstance(content, str) else content
    try:
        path = path.resolve()
        if makes_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        if not _is_replaceable(path):
            path.write_bytes(raw)
            return
        with replacing(path, is_private=is_private) as beside:
            beside.write_bytes(raw)
    except (OSError, RuntimeError) as error:  # links that lead to each other are a RuntimeError up to Python 3.12
        raise unwritable(path, error) from error


@contextmanager
def replacing(path: Path, *, is_private: bool = False) -> Iterator[Path]:
    """An empty file to fill, which replaces `path` atomically at the end of the block, as in `write_whole`. If the
    block raises, `path` is not changed.

    Raises:
        OSError: the file cannot be created, or cannot replace `path`.
        ConfigError: `path` is read-only.
    """
    path = path.resolve()
    _require_changeable(path)
    beside = _beside(path)
    try:
        os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if is_private else 0o666))
        mode = (path if path.exists() else beside).stat().st_mode  # keep the permissions of an existing file
        yield beside
        beside.chmod(S_IMODE(mode))  # a library may have changed them
        synchronise(beside)
        beside.replace(path)
        synchronise(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove what processes that were killed left of the files that they were writing to a folder."""
    for part in folder.glob(f".*{PART}"):
        with suppress(OSError):
            if time() - part.stat().st_mtime > OLD_S:
                part.unlink()


def remove(path: Path) -> None:
    """Remove a file, if there is one.

    Raises:
        ConfigError: it cannot be removed.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be removed ({error.strerror}): allow writing to its folder") from error


def synchronise(path: Path) -> None:
    """Flush a file's contents, or a folder's entries, to the disk. For folders on Windows this does nothing."""
    if sys.platform == "win32" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_replaceable(path: Path) -> bool:
    """Whether the path is a regular file, or does not exist. Devices and pipes must not be replaced."""
    return path.is_file() or not path.exists()


def _require_changeable(path: Path) -> None:
    """Refuse a read-only file, since renaming another file over it would work despite its permissions."""
    if path.exists() and not os.access(path, os.W_OK):
        raise unwritable(path, "it is read-only")


def _try_folder(path: Path, *, needs_folder: bool) -> None:
    folder = path.parent if needs_folder else next(folder for folder in path.absolute().parents if folder.exists())
    if not folder.is_dir():
        raise unwritable(path, f"{folder} is not a folder" if folder.exists() else f"there is no folder {folder}")
    beside = _beside(folder / path.name)
    try:
        beside.write_bytes(ROOM)
    finally:
        beside.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    """A unique temporary name in the same folder."""
    return path.with_name(f".{path.name}.{token_hex(4)}{PART}")


def unwritable(path: Path, obstacle: str | Exception) -> UnwritableError:
    reason = str(getattr(obstacle, "strerror", None) or obstacle)
    return UnwritableError(path, reason)
