"""A folder for what is not whole yet, of which nothing stays."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp


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
