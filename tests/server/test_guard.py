"""Names of hosts and sites, keys in files, and connections that say little for long."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.server.config import KeyFileError, ServerConfig
from forerun.server.guard.gate import HostNames
from forerun.server.guard.keys import KeyRing, read_api_keys
from forerun.server.guard.strict_json import read_json
from forerun.server.protocols.errors import ApiError
from tests.server.holding import until
from tests.server.serving import Served, served

KEY = "a-key-of-more-than-sixteen"
SITE = "https://chat.example"


@pytest.mark.parametrize(
    ("settings", "is_loopback", "taken", "refused"),
    [
        ({}, True, "localhost 127.0.0.1:80 [::1]:80 localhost:1", "evil.example 10.0.0.1 127.0.0.1.evil.example"),
        ({"api_keys": (KEY,)}, True, "localhost", "evil.example"),
        ({"allowed_hosts": ("chat.example",)}, True, "chat.example:443 localhost", "evil.example"),
        ({"api_keys": (KEY,)}, False, "anything.example 10.0.0.1", ""),
        ({"api_keys": (KEY,), "allowed_hosts": ("Chat.example",)}, False, "chat.example 10.0.0.1", "evil.example"),
        ({"insecure_no_auth": True}, False, "10.0.0.1:8000 [fe80::1]:8000 localhost", "evil.example"),
    ],
)
def test_names_that_lead_here_rightly(settings: dict[str, Any], is_loopback: bool, taken: str, refused: str) -> None:
    names = HostNames(ServerConfig(**settings), is_loopback=is_loopback)
    assert [host for host in taken.split() if not names.has(host)] == []
    assert [host for host in [*refused.split(), *([""] if refused else [])] if names.has(host)] == []


@pytest.fixture(scope="module")
def strict() -> Iterator[Served]:
    with served(allowed_origins=(SITE,), header_s=0.5, body_s=0.5, max_connections=4) as running:
        yield running


def test_a_site_that_is_named_may_read_the_answers(strict: Served) -> None:
    with strict.client(headers={"origin": SITE}) as client:
        answer = client.get("/v1/models")
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == SITE
        asked = client.options("/v1/chat/completions", headers={"access-control-request-method": "POST"})
        assert asked.status_code == 204
        assert asked.headers["access-control-allow-headers"] == "authorization, *"  # * alone leaves that one out
        assert "retry-after" in answer.headers["access-control-expose-headers"]
        assert client.get("/v1/models", headers={"origin": "https://evil.example"}).status_code == 403
        assert client.options("/v1/models", headers={"origin": "https://evil.example"}).status_code == 403


def test_a_client_that_reads_no_answer_does_not_stay() -> None:
    with served(unread_s=0.3) as server, socket.socket() as sock:
        server.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # for what it accepts from now on
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sock.connect(server.address)
        sock.setblocking(False)
        deadline = time.monotonic() + 30
        is_gone = False
        while not is_gone and time.monotonic() < deadline:
            try:
                sock.send(b"GET /page/chat.js HTTP/1.1\r\nhost: localhost\r\n\r\n" * 50)
            except BlockingIOError:
                time.sleep(0.01)
            except ConnectionError:
                is_gone = True
        assert is_gone


@pytest.mark.parametrize("said", [b"", b"GET /health HTTP/1.1\r\nhost: loc"])
def test_a_head_that_does_not_come_ends_the_connection(strict: Served, said: bytes) -> None:
    with socket.create_connection(strict.address, timeout=60) as sock:
        sock.sendall(said)
        assert sock.recv(100) == b""


def test_a_second_head_that_does_not_come_ends_the_connection_too(strict: Served) -> None:
    with socket.create_connection(strict.address, timeout=60) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b"200" in sock.recv(20)
        sock.sendall(b"GET /health")
        while sock.recv(4096):
            pass


def test_a_body_that_does_not_come_is_told_so(strict: Served) -> None:
    with socket.create_connection(strict.address, timeout=60) as sock:
        sock.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: 20\r\n\r\n{"
        )
        assert sock.recv(100).startswith(b"HTTP/1.1 408")


def test_a_chunked_body_is_bounded_as_well(strict: Served) -> None:
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    with socket.create_connection(strict.address, timeout=60) as sock:
        sock.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n" + 8 * chunk + b"10\r\n" + b" " * 16 + b"\r\n"
        )
        assert sock.recv(100).startswith(b"HTTP/1.1 413")


def test_connections_beyond_the_limit_are_closed_and_the_others_live_on(strict: Served) -> None:
    held = [socket.create_connection(strict.address, timeout=60) for _ in range(8)]
    ended = 0
    for sock in held:
        try:
            ended += sock.recv(100) == b""
        except ConnectionResetError:
            ended += 1
        sock.close()
    assert ended == 8  # four at once, and four that said nothing
    with strict.client() as client:
        assert client.get("/health").status_code == 200


def test_one_address_cannot_have_all_connections() -> None:
    with served(max_connections_per_client=2) as server:
        held = [socket.create_connection(server.address, timeout=60) for _ in range(2)]
        with socket.create_connection(server.address, timeout=60) as third:
            assert was_closed(third)
        held[0].close()
        with server.client() as client:
            until(lambda: is_answered(client))
        held[1].close()


def was_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(100) == b""
    except ConnectionResetError:
        return True


def is_answered(client: httpx.Client) -> bool:
    """Closing takes the server a moment."""
    with suppress(httpx.TransportError):
        return client.get("/health").status_code == 200
    return False


@pytest.mark.parametrize(
    "body", [b"zz\r\n{}\r\n", b"5\r\n{}", b"-1\r\n", b"2\r\n{}\r\nx", b"ffffffffffffffffffffffff\r\n"]
)
@pytest.mark.parametrize("method", [b"POST", b"HEAD"])
def test_a_body_that_is_no_http_ends_its_request_without_a_word_in_the_log(
    server: Served, caplog: pytest.LogCaptureFixture, method: bytes, body: bytes
) -> None:
    with socket.create_connection(server.address, timeout=60) as sock:
        sock.sendall(
            method + b" /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n" + body
        )
        sock.shutdown(socket.SHUT_WR)
        received = b"".join(iter(lambda: sock.recv(4096), b""))
    if received and method == b"POST":
        head, _, said = received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400")
        assert json.loads(said)["error"]["type"] == "invalid_request_error"
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_keys_are_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{KEY}\n\nanother-key-of-this-server\n")
    path.chmod(0o600)
    assert read_api_keys(path) == (KEY, "another-key-of-this-server")
    path.write_bytes(b"\xff" * 20)
    with pytest.raises(KeyFileError, match="UTF-8"):
        read_api_keys(path)


@given(st.binary(max_size=60))
def test_no_header_opens_but_the_key(header: bytes) -> None:
    ring = KeyRing((KEY, "another-key-of-this-server"))
    assert owner_of(ring, header) is None
    assert owner_of(ring, b"Bearer " + header) is None
    assert ring.owner({b"x-api-key": header}) is None
    assert (
        owner_of(ring, f"BEARER {KEY}".encode())
        == owner_of(ring, f"Bearer  {KEY} ".encode())
        == ring.owner({b"x-api-key": KEY.encode()})
        == ring.owner({b"x-api-key": KEY.encode(), b"authorization": b"Bearer none"})
        != owner_of(ring, b"Bearer another-key-of-this-server")
    )


def owner_of(ring: KeyRing, authorization: bytes) -> str | None:
    return ring.owner({b"authorization": authorization})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",))),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab[{\"\\", max_size=3), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(VALUES)
def test_json_that_others_write_is_read_as_they_read_it(value: Any) -> None:
    for encoding in ("utf-8", "utf-8-sig"):  # with a byte order mark
        assert read_json(json.dumps({"x": value}).encode(encoding), max_depth=64) == {"x": value}


@pytest.mark.parametrize(
    "body",
    [
        b'"' + b'\\"' * 1_000_000,
        b"[" * 1_000_000,
        b"[]," * 600_000,
        b'{"x":[' + b'"",' * 600_000 + b'"]',
        b'{"x":"' + b"\\" * 1_000_001,
        b"[" * 65 + b'"' + b"a" * 1_000_000,
    ],
)
def test_large_bodies_that_are_no_json_end(body: bytes) -> None:
    with pytest.raises(ApiError):
        read_json(body, max_depth=64)
