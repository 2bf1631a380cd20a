"""Write files atomically, and check before any work that they can be written."""

import os
from pathlib import Path
from secrets import token_hex
from shutil import copymode
from typing import Final

from forerun.core.errors import ConfigError

BINARY: Final = getattr(os, "O_BINARY", 0)  # without it Windows changes line ends
ROOM: Final = b"\n" * 4096  # written as a test that a file can be written


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
            raise _unwritable(path, "it is a folder")
        if _is_replaceable(path):
            _require_changeable(path)
            _try_folder(path, needs_folder=needs_folder)
        else:
            _require_changeable(path)
    except (OSError, RuntimeError) as error:
        raise _unwritable(path, getattr(error, "strerror", None) or str(error)) from error


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
        _require_changeable(path)
        beside = _beside(path)
        try:
            mode = 0o600 if is_private else 0o666
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, mode), "wb") as file:  # noqa: PTH123
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            if path.exists():
                copymode(path, beside)  # keep permissions, for example of a private file
            beside.replace(path)
            _sync_folder(path.parent)
        finally:
            beside.unlink(missing_ok=True)
    except (OSError, RuntimeError) as error:  # a loop of links raises RuntimeError up to Python 3.12
        raise _unwritable(path, getattr(error, "strerror", None) or str(error)) from error


def _is_replaceable(path: Path) -> bool:
    """Whether the path is a regular file, or does not exist. Devices and pipes must not be replaced."""
    return path.is_file() or not path.exists()


def _require_changeable(path: Path) -> None:
    """Refuse a read-only file, which renaming another file over it would replace against its owner's intention."""
    if path.exists() and not os.access(path, os.W_OK):
        raise _unwritable(path, "it may not be written to")


def _try_folder(path: Path, *, needs_folder: bool) -> None:
    folder = path.parent if needs_folder else next(folder for folder in path.absolute().parents if folder.exists())
    if not folder.is_dir():
        raise _unwritable(path, f"{folder} is no folder" if folder.exists() else f"there is no folder {folder}")
    beside = _beside(folder / path.name)
    try:
        beside.write_bytes(ROOM)
    finally:
        beside.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    """A unique temporary name in the same folder."""
    return path.with_name(f".{path.name}.{token_hex(4)}.part")


def _sync_folder(folder: Path) -> None:
    """Flush the folder's entries to the disk, if the system can."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unwritable(path: Path, obstacle: str) -> ConfigError:
    return ConfigError(f"{path} cannot be written ({obstacle}): name another file")
