"""Files that are read, changed and written again, perhaps by several processes: what is unknown is not replaced."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from forerun.core.errors import CheckpointError, ConfigError
from forerun.core.json_file import read_bounded
from forerun.core.locks import lock
from forerun.core.output_file import unwritable, write_whole


class FileChangedError(ConfigError):
    """A file holds something else than was last read from it or written to it."""


class KeptFiles:
    """What files held when they were last read or written here.

    A file is known by its contents, since times and sizes can be the same for others.

    Args:
        max_bytes: what is larger is not read.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._known = dict[Path, bytes]()

    def read(self, path: Path) -> bytes:
        """What the file holds.

        Raises:
            OSError: it is absent, unreadable, or larger.
        """
        raw = self._known[path.resolve()] = read_bounded(path, self._max_bytes)
        return raw

    def is_known(self, path: Path) -> bool:
        """Whether nothing would be lost if the file were written: there is none, or nothing unknown in it."""
        if not path.is_file():  # a device or a pipe is not replaced
            return True
        try:
            return read_bounded(path, self._max_bytes) in (b"", self._known.get(path.resolve()))
        except (OSError, CheckpointError):
            return False

    def write(self, path: Path, content: str, *, is_agreed: bool = False) -> None:
        """Write a file whole where it is known, see `write_whole`; of several that do so at once one is the first.

        Args:
            is_agreed: whatever it holds may be lost.

        Raises:
            FileChangedError: it holds something else, and still does.
            ConfigError: it cannot be written.
        """
        raw = content.encode()
        try:
            path = path.resolve()
            with _held_still(path):
                if not is_agreed and not self.is_known(path):
                    raise FileChangedError(f"{path} was changed by another program: name another file")
                write_whole(path, raw)
        except (OSError, RuntimeError) as error:
            raise unwritable(path, getattr(error, "strerror", None) or str(error)) from error
        self._known[path] = raw


@contextmanager
def _held_still(path: Path) -> Iterator[None]:
    """No other process that asks in this way writes the file meanwhile. It is made, empty, where it is missing.

    Every write replaces the file, so what is held may have lost its name while it was waited for.
    """
    if sys.platform == "win32" or (path.exists() and not path.is_file()):
        yield
        return
    while True:
        is_new = not path.exists()
        with path.open("ab") as file:
            with suppress(OSError):  # of file systems without locks: there the contents are compared all the same
                lock(file.fileno(), waits=True)
            if not _has_name(file.fileno(), path):
                continue
            try:
                yield
            except BaseException:
                if is_new and path.stat().st_size == 0:
                    path.unlink()
                raise
            return


def _has_name(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
