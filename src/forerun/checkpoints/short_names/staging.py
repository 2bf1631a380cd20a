"""A temporary folder for incomplete files."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp


@contextmanager
def staging_folder(folder: Path) -> Iterator[Path]:
    """An empty folder for incomplete files, removed afterwards. First removes what killed processes left behind."""
    for left in folder.glob(".part-*"):
        rmtree(left, ignore_errors=True)
    staging = Path(mkdtemp(prefix=".part-", dir=folder))
    try:
        yield staging
    finally:
        rmtree(staging, ignore_errors=True)
