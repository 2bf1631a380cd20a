"""API keys: reading the key file, and finding a request's owner."""

import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from forerun.core.errors import ConfigError
from forerun.server.config import KeyFileError
from forerun.wires.endpoint import read_key

PREFIX: Final = b"bearer "
OWNER_CHARACTERS: Final = 16  # of a digest: enough to tell keys apart, and useless as a key


def read_api_keys(path: str | Path) -> tuple[str, ...]:
    """The keys in a file, one per line. Only the file's owner may have permission to read it.

    Raises:
        KeyFileError: it cannot be read, other users may read it, or it is not UTF-8.
    """
    try:
        return tuple(read_key(path).decode().split())
    except ConfigError as error:
        raise KeyFileError(str(error)) from error
    except UnicodeDecodeError as error:
        raise KeyFileError(f"key file {path} is not UTF-8 text: write one key a line") from error


class KeyRing:
    """Finds the owner of a request by its key. Compares with the digests of all keys, each in constant time."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = tuple(hashlib.sha256(key.encode()).digest() for key in keys)

    def owner(self, authorization: bytes | None) -> str | None:
        """A stable name for the key in this Authorization header; None if the key is missing or wrong.

        Empty if no key is needed.
        """
        if not self._digests:
            return ""
        given = authorization or b""
        is_bearer = given[: len(PREFIX)].lower() == PREFIX
        digest = hashlib.sha256(given[len(PREFIX) :].strip()).digest()
        fitting = [hmac.compare_digest(digest, known) for known in self._digests]
        return digest.hex()[:OWNER_CHARACTERS] if is_bearer and any(fitting) else None
