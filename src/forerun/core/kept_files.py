"""Files that several processes may read, change and write again: changes by another program are not overwritten."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from forerun.core.errors import CheckpointError, ConfigError
from forerun.core.json_file import read_bounded
from forerun.core.locks import LOCK_NAME, lock
from forerun.core.output_file import unwritable, write_whole


class FileChangedError(ConfigError):
    """Another program changed a file after it was last read or written here."""


class KeptFiles:
    """Remembers the contents of files that were read or written here, and detects changes by other programs.

    Contents are compared, since a changed file can have the same time and size.

    Args:
        max_bytes: larger files are not read.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._known = dict[Path, bytes]()

    def read(self, path: Path) -> bytes:
        """The file's contents.

        Raises:
            OSError: it is absent, unreadable, or larger than `max_bytes`.
        """
        raw = self._known[path.resolve()] = read_bounded(path, self._max_bytes)
        return raw

    def is_known(self, path: Path) -> bool:
        """Whether the file can be overwritten without loss: it is absent, empty, or unchanged since the last access."""
        if not path.is_file():  # devices and pipes are not replaced
            return True
        try:
            return read_bounded(path, self._max_bytes) in (b"", self._known.get(path.resolve()))
        except (OSError, CheckpointError):
            return False

    def write(self, path: Path, content: str, *, is_agreed: bool = False) -> None:
        """Replace a file's contents with `write_whole`, unless another program changed them. A lock keeps other
        processes that write with this method out meanwhile.

        Args:
            is_agreed: overwrite the file even if another program changed it.

        Raises:
            FileChangedError: another program changed the file, which is left as it is.
            ConfigError: it cannot be written.
        """
        raw = content.encode()
        try:
            path = path.resolve()
            with _locked(path):
                if not is_agreed and not self.is_known(path):
                    raise FileChangedError(f"{path} was changed by another program: name another file")
                write_whole(path, raw)
        except (OSError, RuntimeError) as error:
            raise unwritable(path, error) from error
        self._known[path] = raw


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock a file, with another one beside it, against other processes that use this lock."""
    with ExitStack() as opened:
        if path.is_file() or not path.exists():  # devices and pipes are not replaced
            with suppress(OSError):  # a file system without locks: the contents are still compared
                opened.enter_context(lock(path.with_name(f".{path.name}{LOCK_NAME}"), waits=True))
        yield
