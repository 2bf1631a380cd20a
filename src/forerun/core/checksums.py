"""Checksums of files."""

from hashlib import file_digest
from pathlib import Path

from forerun.core.errors import CheckpointError


def sha256_of(path: Path) -> str:
    """The sha256 of a file's contents, in hexadecimal.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def require_sum(name: str, found: str, expected: str) -> None:
    """Raise CheckpointError if a downloaded file has another checksum than its origin states."""
    if found != expected:
        raise CheckpointError(
            f"{name} is not the file that was expected: its sha256 is {found}, but must be {expected}: fetch it again"
        )
