"""JSON over HTTP with the standard library: one answer, or a stream of server-sent events."""

import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Final
from urllib.parse import urlsplit

from forerun_lab.bench.peers.messages import PeerError

TIMEOUT_S: Final = 900.0
DONE: Final = "[DONE]"
PREFIX: Final = b"data:"


def get_json(url: str) -> Any:
    """The JSON that a GET of `url` returns.

    Raises:
        PeerError: there is no answer, or it is an error or not JSON.
    """
    with request("GET", url) as response:
        require_ok(response, url)
        return read_json(response.read(), url)


def status_of(method: str, url: str, *, timeout_s: float = TIMEOUT_S) -> int:
    """The status of a request without a body."""
    with request(method, url, timeout_s=timeout_s) as response:
        return response.status


def post_events(url: str, body: Mapping[str, Any]) -> Generator[dict[str, Any], None, None]:
    """The events of a POST as they arrive. Closing the generator closes the connection, so that the server stops.

    Raises:
        PeerError: there is no answer, or it is an error or not an event.
    """
    with request("POST", url, json.dumps(body)) as response:
        require_ok(response, url)
        while line := response.readline():
            if not line.startswith(PREFIX):
                continue
            text = line[len(PREFIX) :].strip()
            if text == DONE.encode():
                return
            yield read_json(text, url)


@contextmanager
def request(method: str, url: str, body: str | None = None, *, timeout_s: float = TIMEOUT_S) -> Iterator[HTTPResponse]:
    """Send a request; the connection is open inside the `with` block, and errors in it are raised as PeerError."""
    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    with closing(kind(parts.netloc, timeout=timeout_s)) as connection:
        try:
            connection.request(method, parts.path, body=body, headers={"Content-Type": "application/json"})
            with closing(connection.getresponse()) as response:
                yield response
        except (OSError, HTTPException) as error:
            raise PeerError(
                f"{url} failed ({type(error).__name__}: {error}): is the server up, and is this its address?"
            ) from error


def require_ok(response: HTTPResponse, url: str) -> None:
    """Raise PeerError with the server's message unless the status is 200."""
    if response.status != 200:
        said = response.read(500).decode(errors="replace").strip()
        raise PeerError(f"{url} answered {response.status} {response.reason}: {said}")


def read_json(text: bytes, url: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise PeerError(f"{url} sent {text[:80]!r}, but JSON was expected: is this its address?") from error
