"""Who knows the key gets in, nobody else does, and nobody can hold the door."""

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from forerun.core.errors import ConfigError, DrafterUnreachableError
from forerun.wires import endpoint, handshake
from forerun.wires.endpoint import Address, Admission, connect, listen, read_key

HANG_S = 60.0
KEY = b"a key of enough bytes"
OTHER_KEY = b"another key of enough bytes"
ANY_PORT = Address(server="127.0.0.1", port=0)
HELLO_BYTES = len(handshake.GREETING) + handshake.HELLO.size

pytestmark = pytest.mark.timeout(2 * HANG_S)


def address_of(listener: socket.socket) -> Address:
    server, port = listener.getsockname()[:2]
    return Address(server=server, port=port)


class Door(threading.Thread):
    """Accepts `num_peers` times in the background; `answers` are what came in, or None."""

    def __init__(self, key: bytes | None, *, num_peers: int = 1, timeout_s: float = HANG_S) -> None:
        super().__init__()
        self.listener = listen(ANY_PORT, key)
        self.address = address_of(self.listener)
        self.answers: list[socket.socket | None] = []
        self._num_peers = num_peers
        self._admission = Admission(self.listener, key, handshake_s=timeout_s)
        self.start()

    def run(self) -> None:
        for _ in range(self._num_peers):
            self.answers.append(self._admission.accept(HANG_S))

    def wait(self) -> list[socket.socket | None]:
        self.join(HANG_S)
        assert not self.is_alive()
        return self.answers

    def close(self) -> None:
        self.join(HANG_S)
        self._admission.close()
        self.listener.close()
        for answer in self.answers:
            if answer is not None:
                answer.close()


OpenDoor = Callable[..., Door]


@pytest.fixture
def open_door() -> Iterator[OpenDoor]:
    doors: list[Door] = []

    def open_one(key: bytes | None, *, num_peers: int = 1, timeout_s: float = HANG_S) -> Door:
        doors.append(Door(key, num_peers=num_peers, timeout_s=timeout_s))
        return doors[-1]

    yield open_one
    for door in doors:
        door.close()


def read_exactly(sock: socket.socket, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes and (chunk := sock.recv(num_bytes - len(data))):
        data += chunk
    return data


def stranger(address: Address) -> socket.socket:
    return socket.create_connection((address.server, address.port), timeout=HANG_S)


def passes(client_key: bytes | None, door: Door) -> bool:
    try:
        connect(door.address, client_key, timeout_s=HANG_S).close()
    except DrafterUnreachableError:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "server", "port"),
    [("localhost:7070", "localhost", 7070), ("10.0.0.1:0", "10.0.0.1", 0), ("[::1]:65535", "::1", 65535)],
)
def test_an_address_is_read_and_written_alike(text: str, server: str, port: int) -> None:
    assert Address.parse(text) == Address(server=server, port=port)
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost",
        ":7070",
        "a:",
        "a:b",
        "a:-1",
        "a:+1",
        "a:65536",
        "::1:7070",
        "[::1]",
        "[]:7",
        "a:\u0663",
        "[a]:1",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"address|port|host"):
        Address.parse(text)


def key_file(folder: Path, content: bytes, *, mode: int = 0o600) -> Path:
    path = folder / "key"
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o601])
def test_a_key_that_others_may_use_is_refused_and_not_shown(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match="chmod 600") as caught:
        read_key(key_file(tmp_path, KEY, mode=mode))
    assert KEY.decode() not in str(caught.value)


def test_a_missing_key_is_an_error_that_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="umask 077"):
        read_key(tmp_path / "nothing")


@pytest.mark.parametrize("key", [b"", b"0123456789abcde"])
def test_a_short_key_opens_and_knocks_at_no_door(key: bytes) -> None:
    with pytest.raises(ConfigError, match="at least 16"):
        listen(ANY_PORT, key)
    with pytest.raises(ConfigError, match="at least 16"):
        connect(Address(server="127.0.0.1", port=1), key, timeout_s=1)
    with closing(listen(ANY_PORT, KEY)) as listener, pytest.raises(ConfigError, match="at least 16"):
        Admission(listener, key, handshake_s=0)


@pytest.mark.parametrize("server", ["0.0.0.0", "::", "192.0.2.1"])
def test_without_a_key_only_this_machine_may_come(server: str) -> None:
    with pytest.raises(ConfigError, match="give a key file"):
        listen(Address(server=server, port=0), None)


@pytest.mark.parametrize("order", [1, -1])
def test_without_a_key_every_address_of_a_name_must_be_of_this_machine(
    order: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in ("127.0.0.1", "192.0.2.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found[::order])
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
        listen(Address(server="two-faced.example", port=0), None)


def test_a_port_in_use_is_an_error_that_names_it() -> None:
    with closing(listen(ANY_PORT, None)) as listener:
        address = address_of(listener)
        with pytest.raises(ConfigError, match=str(address.port)):
            listen(address, None)


@pytest.mark.parametrize("server", ["192.0.2.1", "no such host", "a" * 70, "a..b", "a\0b"])
def test_a_host_that_is_not_ours_is_a_config_error(server: str) -> None:
    with pytest.raises(ConfigError, match="cannot listen"):
        listen(Address(server=server, port=0), KEY)


@pytest.mark.parametrize("key", [None, KEY])
def test_two_that_agree_can_talk(key: bytes | None, open_door: OpenDoor) -> None:
    door = open_door(key)
    with connect(door.address, key, timeout_s=HANG_S) as left:
        (right,) = door.wait()
        assert right is not None
        assert left.gettimeout() is right.gettimeout() is None
        left.sendall(b"hello")
        right.sendall(b"world")
        assert (read_exactly(right, 5), read_exactly(left, 5)) == (b"hello", b"world")


@pytest.mark.parametrize(
    ("listener_key", "client_key", "said", "logged"),
    [
        (KEY, OTHER_KEY, "the same key", "another key"),
        (KEY, KEY + b"!", "the same key", "another key"),
        (KEY, None, "the other side has a key and this one has none", "this side has a key"),
        (None, KEY, "this side has a key and the other one has none", "the other side has a key"),
    ],
)
def test_two_that_disagree_are_told_why(
    listener_key: bytes | None,
    client_key: bytes | None,
    said: str,
    logged: str,
    open_door: OpenDoor,
    caplog: pytest.LogCaptureFixture,
) -> None:
    door = open_door(listener_key)
    with pytest.raises(DrafterUnreachableError, match=said):
        connect(door.address, client_key, timeout_s=HANG_S)
    assert door.wait() == [None]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert logged in record.getMessage()


@pytest.mark.parametrize("timeout_s", [0, 0.05])
def test_nobody_coming_is_none_without_a_warning(timeout_s: float, caplog: pytest.LogCaptureFixture) -> None:
    with closing(listen(ANY_PORT, None)) as listener:
        assert Admission(listener, None, handshake_s=HANG_S).accept(timeout_s) is None
    assert caplog.records == []


def test_the_listener_proves_nothing_to_a_stranger(open_door: OpenDoor) -> None:
    door = open_door(KEY)
    with stranger(door.address) as client:
        client.sendall(handshake.GREETING + handshake.HELLO.pack(True, bytes(32)) + bytes(32))
        heard = read_exactly(client, 1000)
    assert len(heard) == HELLO_BYTES
    assert door.wait() == [None]


@pytest.mark.parametrize("key", [None, KEY])
def test_an_echo_is_no_peer(key: bytes | None, open_door: OpenDoor) -> None:
    """From either side; a connection to oneself looks the same."""
    door = open_door(key)

    def echo(sock: socket.socket) -> None:
        with suppress(OSError):
            while data := sock.recv(1000):
                sock.sendall(data)

    with stranger(door.address) as client:
        echo(client)
    assert door.wait() == [None]
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as sock:
                echo(sock)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(DrafterUnreachableError, match="sends back"):
            connect(address_of(server), key, timeout_s=HANG_S)
        thread.join(HANG_S)


def test_a_proof_carried_over_from_another_connection_fails() -> None:
    """Two that connect to an impostor: each one's nonce and proof are offered to the other one as the listener's."""
    outcomes: list[str] = []

    def knock(address: Address) -> None:
        try:
            connect(address, KEY, timeout_s=HANG_S).close()
            outcomes.append("let the impostor in")
        except DrafterUnreachableError as error:
            outcomes.append(str(error))

    with socket.create_server(("127.0.0.1", 0)) as impostor:
        threads = [threading.Thread(target=knock, args=(address_of(impostor),)) for _ in range(2)]
        for thread in threads:
            thread.start()
        with impostor.accept()[0] as first, impostor.accept()[0] as second:
            for num_bytes in (HELLO_BYTES, handshake.PROOF_BYTES):
                said = read_exactly(first, num_bytes), read_exactly(second, num_bytes)
                assert len(said[0]) == len(said[1]) == num_bytes
                second.sendall(said[0])
                first.sendall(said[1])
            for thread in threads:
                thread.join(HANG_S)
    assert len(outcomes) == 2
    assert all("another key" in outcome for outcome in outcomes)


def test_a_recorded_handshake_opens_nothing_a_second_time(open_door: OpenDoor) -> None:
    door = open_door(KEY, num_peers=2)
    recorded = []
    with socket.create_server(("127.0.0.1", 0)) as relay:

        def carry() -> None:
            with relay.accept()[0] as client, stranger(door.address) as server:
                for num_bytes in (HELLO_BYTES, handshake.PROOF_BYTES):
                    recorded.append(read_exactly(client, num_bytes))
                    server.sendall(recorded[-1])
                    client.sendall(read_exactly(server, num_bytes))

        thread = threading.Thread(target=carry)
        thread.start()
        connect(address_of(relay), KEY, timeout_s=HANG_S).close()
        thread.join(HANG_S)
    with stranger(door.address) as client:
        client.sendall(b"".join(recorded))
        assert len(read_exactly(client, 1000)) == HELLO_BYTES
    first, second = door.wait()
    assert first is not None
    assert second is None


@pytest.mark.parametrize(
    "noise",
    [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 1000, b"forerun\n" + bytes([99]) + bytes(100), handshake.GREETING, b""],
    ids=["http", "zeros", "version", "half", "nothing"],
)
def test_noise_ends_neither_the_listener_nor_gets_into_the_log(
    noise: bytes, open_door: OpenDoor, caplog: pytest.LogCaptureFixture
) -> None:
    door = open_door(KEY, num_peers=2)
    with stranger(door.address) as client:
        client.sendall(noise)
        with suppress(OSError):  # the listener may have hung up by now
            client.shutdown(socket.SHUT_WR)
            read_exactly(client, 1000)
    assert passes(KEY, door)
    first, second = door.wait()
    assert first is None
    assert second is not None
    (record,) = caplog.records
    assert "HTTP" not in record.getMessage()
    assert "\\x" not in record.getMessage()


def test_a_slow_drip_does_not_hold_the_listener(open_door: OpenDoor) -> None:
    """A byte arrives often enough for each wait; the time for all of them is up long before the hello is complete."""
    door = open_door(KEY, timeout_s=0.3)
    hello = handshake.GREETING + handshake.HELLO.pack(True, bytes(32)) + bytes(32)
    num_sent = 0
    with stranger(door.address) as client, suppress(ConnectionError):
        for byte in hello:
            client.sendall(bytes([byte]))
            num_sent += 1
            time.sleep(0.1)
    assert door.wait() == [None]
    assert num_sent < HELLO_BYTES


def test_strangers_who_say_nothing_or_half_a_hello_hold_up_nobody(open_door: OpenDoor) -> None:
    door = open_door(KEY)
    with ExitStack() as strangers:
        for words in (b"", handshake.GREETING, b"", handshake.GREETING[:3], b""):
            strangers.enter_context(stranger(door.address)).sendall(words)
        with connect(door.address, KEY, timeout_s=HANG_S):
            (answer,) = door.wait()
    assert answer is not None


def test_of_too_many_handshakes_the_oldest_is_ended(open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MAX_PENDING", 3)
    door = open_door(KEY)
    with ExitStack() as strangers:
        waiting = []
        for _ in range(4):
            waiting.append(strangers.enter_context(stranger(door.address)))
            assert len(read_exactly(waiting[-1], HELLO_BYTES)) == HELLO_BYTES, "its handshake has begun"
        assert read_exactly(waiting[0], 1) == b""
        with connect(door.address, KEY, timeout_s=HANG_S):
            assert read_exactly(waiting[1], 1) == b""
            (answer,) = door.wait()
    assert answer is not None


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system has no such settings")
def test_both_ends_find_out_within_half_a_minute_that_the_other_one_has_vanished(open_door: OpenDoor) -> None:
    door = open_door(KEY)
    with connect(door.address, KEY, timeout_s=HANG_S) as left:
        (right,) = door.wait()
        assert right is not None
        for sock in (left, right):
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            idle, interval, count, unconfirmed_ms = (
                sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
                for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
            )
            assert idle + interval * count <= 30
            assert unconfirmed_ms <= 30_000
