"""Files that are written whole or not at all, and found out to be possible before any work is done for them."""

import os
from pathlib import Path
from shutil import copymode
from typing import Final

from forerun.core.errors import ConfigError

ROOM: Final = b"\n" * 4096  # what a place must take to count as one that can be written to


def require_writable(path: Path, *, needs_folder: bool = False) -> None:
    """Refuse a place that takes no file; what is there stays as it is.

    Args:
        needs_folder: the folder must be there already; else it will be made.

    Raises:
        ConfigError: what stands in the way.
    """
    try:
        if path.is_dir():
            raise _unwritable(path, "it is a folder")
        if _is_replaceable(path):
            _require_changeable(path)
            _try_folder(path, needs_folder=needs_folder)
        else:
            _require_changeable(path)
    except OSError as error:
        raise _unwritable(path, str(error.strerror)) from error


def write_whole(path: Path, content: str | bytes, *, makes_folder: bool = False) -> None:
    """Write a file atomically: other processes, even writers, see all of it or its previous contents.

    Raises:
        ConfigError: it cannot be written.
    """
    raw = content.encode() if isinstance(content, str) else content
    try:
        if makes_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        if not _is_replaceable(path):
            path.write_bytes(raw)
            return
        _require_changeable(path)
        beside = _beside(path)
        try:
            beside.touch()
            if path.exists():
                copymode(path, beside)  # a file that only its owner may read stays one
            beside.write_bytes(raw)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(path, str(error.strerror)) from error


def _is_replaceable(path: Path) -> bool:
    """A regular file, or none yet: not a device, a pipe or a link, which must not be replaced."""
    return not path.is_symlink() and (path.is_file() or not path.exists())


def _require_changeable(path: Path) -> None:
    """A folder lets go of a file that may not be written to, which is not what its owner meant."""
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
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def _unwritable(path: Path, obstacle: str) -> ConfigError:
    return ConfigError(f"{path} cannot be written ({obstacle}): name another file")
