"""Download a file over HTTPS; it appears under its name only when it is complete and checked."""

import gzip
import hashlib
import zlib
from contextlib import closing
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Final
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
)

from forerun.core.errors import ConfigError
from forerun.core.output_file import replacing
from forerun_lab.bench.data.json_lines import read_objects

TIMEOUT_S: Final = 30.0  # longest wait for the next bytes
MAX_BYTES: Final = 64 * 2**20
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


def fetch(url: str, path: Path, *, num_rows: int, sha256: str | None = None) -> None:
    """Download `url` to `path`, unpacked if the URL ends in .gz.

    The file appears under its name only when it is complete and checked, so a broken connection, a wrong checksum or a
    kill leaves no invalid file there.

    Args:
        num_rows: JSON objects the file must hold, one per line.
        sha256: checksum of the bytes sent; None if it is not known.

    Raises:
        ConfigError: the file cannot be downloaded, is not the expected one, or cannot be written.
    """
    data = download(url)
    if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
        raise ConfigError(
            f"{url} is not the file that was expected: its sha256 is {hashlib.sha256(data).hexdigest()}, not {sha256}"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            part.write_bytes(_unpack(url, data) if url.endswith(".gz") else data)
            _check_rows(url, part, num_rows)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error}): choose another cache folder") from error


def download(url: str) -> bytes:
    """The bytes at `url`. Plain http is allowed only for this machine.

    Raises:
        ConfigError: it is not an https URL, or the download fails or is incomplete.
    """
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOOPBACK):
        raise ConfigError(f"{url} is not fetched: an address that begins with https:// is needed")
    try:
        with closing(_opener(is_local=parts.hostname in LOOPBACK).open(url, timeout=TIMEOUT_S)) as response:
            assert isinstance(response, HTTPResponse), response
            return _body(url, response)
    except HTTPError as error:
        error.close()
        raise ConfigError(f"{url} cannot be fetched (status {error.code} {error.reason})") from error
    except (OSError, HTTPException) as error:
        raise ConfigError(f"{url} cannot be fetched ({type(error).__name__}: {error})") from error


def _opener(*, is_local: bool) -> OpenerDirector:
    """An opener that does not follow redirects, which could lead to plain http."""
    opener = OpenerDirector()
    handlers = (HTTPHandler(), HTTPSHandler(), HTTPDefaultErrorHandler(), HTTPErrorProcessor())
    for handler in handlers if is_local else (ProxyHandler(), *handlers):
        opener.add_handler(handler)
    return opener


def _body(url: str, response: HTTPResponse) -> bytes:
    promised = response.length
    data = response.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{url} is longer than {MAX_BYTES} bytes, so it is not the file that was expected")
    if promised is not None and len(data) < promised:
        raise ConfigError(f"{url} broke off after {len(data)} of {promised} bytes: try again")
    return data


def _unpack(url: str, data: bytes) -> bytes:
    try:
        return gzip.decompress(data)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ConfigError(f"{url} is not a complete gzip file ({error})") from error


def _check_rows(url: str, part: Path, num_rows: int) -> None:
    """Count the rows, so that an error page sent with status 200, or an edited file, is refused."""
    try:
        found = sum(1 for _ in read_objects(part))
    except ConfigError as error:
        raise ConfigError(f"{url} is not the file that was expected: {error}") from error
    if found != num_rows:
        raise ConfigError(f"{url} is not the file that was expected: it has {found} rows, not {num_rows}")
