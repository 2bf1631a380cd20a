"""API keys: reading the key file, and finding a request's owner."""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from forerun.core.errors import ConfigError
from forerun.server.config import KeyFileError
from forerun.wires.endpoint import read_key

PREFIX: Final = b"bearer "
PLAIN: Final = b"x-api-key"
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

    def owner(self, headers: Mapping[bytes, bytes]) -> str | None:
        """A stable name for the key in these headers; None if the key is missing or wrong. Empty if no key is needed.

        The key is in Authorization, as in OpenAI's clients, or in x-api-key, as in Anthropic's. If both headers are
        sent, one of them must be right.
        """
        if not self._digests:
            return ""
        given = headers.get(b"authorization", b"")
        is_bearer = given[: len(PREFIX)].lower() == PREFIX
        owners = (self._owner_of(given[len(PREFIX) :]) if is_bearer else None, self._owner_of(headers.get(PLAIN, b"")))
        return next((owner for owner in owners if owner is not None), None)

    def _owner_of(self, key: bytes) -> str | None:
        digest = hashlib.sha256(key.strip()).digest()
        fitting = [hmac.compare_digest(digest, known) for known in self._digests]
        return digest.hex()[:OWNER_CHARACTERS] if any(fitting) else None
