"""TCP between two processes that share a key: listening, connecting, and admission of peers that have the key.

The key authenticates but does not encrypt: token ids are sent unencrypted, and an attacker who can alter the traffic
can take over an open connection. Across untrusted networks, use a tunnel (ssh, WireGuard).
"""

import ipaddress
import logging
import os
import socket
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from forerun.core.errors import ConfigError, DrafterUnreachableError, require
from forerun.core.json_file import shown
from forerun.core.paths import path_of
from forerun.wires.channel import require_channels, wait_readable
from forerun.wires.handshake import SocketHandshake

MIN_KEY_BYTES = 16
MAX_KEY_BYTES = 65536
MAX_PORT = 65535
MAX_PENDING: Final = 64  # concurrent handshakes; a peer with the key passes in a few network round trips
# TCP keepalive probes a silent peer after 10 s, then every 5 s, and gives up after four probes, or after sent data was
# not acknowledged for 30 s. The system's default of two hours would block a worker, which serves one target at a time.
SILENCE = {"TCP_KEEPIDLE": 10, "TCP_KEEPALIVE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The address at which a process listens: a host name or IP address, and a port, 0 for any free one."""

    server: str
    port: int

    def __post_init__(self) -> None:
        require(self.server != "", "the host is empty: name one, 127.0.0.1 for this machine only")
        require(0 <= self.port <= MAX_PORT, f"port {self.port} must lie in [0, {MAX_PORT}]")

    @classmethod
    def parse(cls, text: str) -> Self:
        """The address written as host:port, or [host]:port where the name itself holds colons."""
        server, _, port = text.rpartition(":")
        is_bracketed = server.startswith("[") and server.endswith("]")
        if not (server and port.isascii() and port.isdigit()) or (":" in server) != is_bracketed:
            raise ConfigError(
                f"address {text!r} is not host:port: write it like 127.0.0.1:7070, or [::1]:7070 for IPv6"
            )
        return cls(server=server[1:-1] if is_bracketed else server, port=int(port))

    def __str__(self) -> str:
        return f"[{self.server}]:{self.port}" if ":" in self.server else f"{self.server}:{self.port}"


def read_key(path: str | Path) -> bytes:
    """The key in a file that only its owner may read, without white space around it."""
    given = str(path)
    path = shown(str(path))
    advice = f"make one with: (umask 077; head -c 32 /dev/urandom | base64 > {path})"
    try:
        with path_of(given).open("rb") as file:
            # Of the open file, not of the path, which could name another file by now.
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            key = file.read(MAX_KEY_BYTES + 1).strip()
    except OSError as error:
        raise ConfigError(f"key file {path} cannot be read ({error.strerror}): {advice}") from error
    require(len(key) <= MAX_KEY_BYTES, f"key file {path} holds more than {MAX_KEY_BYTES} bytes: {advice}")
    require(mode & 0o077 == 0, f"key file {path} has mode {mode:03o}, so others may use it: run chmod 600 {path}")
    require_long(key, f"key file {path} holds", advice)
    return key


def require_long(key: bytes | None, holder: str = "the key has", advice: str = "use a longer one") -> None:
    """Raise ConfigError for a key so short that it can be guessed."""
    require(
        key is None or len(key) >= MIN_KEY_BYTES,
        f"{holder} {len(key or b'')} bytes, at least {MIN_KEY_BYTES} are needed: {advice}",
    )


def listen(address: Address, key: bytes | None) -> socket.socket:
    """A listening socket, bound to the first address that the name resolves to. Without a key, only loopback."""
    require_channels()
    require_long(key)
    try:
        resolved = resolve(address)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot listen on {address}: {error}; name a host of this machine") from error
    if key is None:
        # Check all addresses, because which one is bound depends on the order of the name server's answers.
        strangers = [where[0] for _, where in resolved if not is_loopback(where[0])]
        require(
            not strangers,
            f"{address} can be reached from other machines ({', '.join(strangers)}): give a key file, "
            "or listen on 127.0.0.1 and use a tunnel",
        )
    family, where = resolved[0]
    try:
        return socket.create_server(where, family=family)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise ConfigError(f"cannot listen on {address} ({reason}): choose another port") from error


def connect(address: Address, key: bytes | None, timeout_s: float, *, peer: str = "drafter") -> socket.socket:
    """A blocking socket to the listener at `address` that passes the handshake, all within `timeout_s`.

    The name lookup is not limited by `timeout_s`. If the name has several addresses, all are tried in turn, because the
    listener is bound to one of them.

    Args:
        peer: the kind of listener, for messages.
    """
    require_channels()
    require_long(key)
    deadline = time.monotonic() + timeout_s
    try:
        resolved = resolve(address)
    except (OSError, ValueError) as error:
        raise DrafterUnreachableError(f"no {peer} at {address}: {error}; check the host's name") from error
    failures = []
    for family, where in resolved:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.settimeout(remaining_s(deadline))
            sock.connect(where)
            introduce(sock, key, deadline)
        except OSError as error:
            sock.close()
            failures.append(f"{where[0]}: {error}")
        else:
            return with_keepalive(sock)
    raise DrafterUnreachableError(
        f"no {peer} at {address} within {timeout_s} s ({'; '.join(failures)}): start one there, with the same key"
    )


def resolve(address: Address) -> list[tuple[socket.AddressFamily, tuple[Any, ...]]]:
    """Family and socket address of every address of the server's name."""
    found = socket.getaddrinfo(address.server, address.port, type=socket.SOCK_STREAM)
    return [(family, where) for family, _, _, _, where in found]


def is_loopback(ip_address: str) -> bool:
    return ipaddress.ip_address(ip_address.partition("%")[0]).is_loopback


def introduce(sock: socket.socket, key: bytes | None, deadline: float) -> None:
    """Return once the listener is authenticated; raise OSError otherwise, or after `deadline`."""
    handshake = SocketHandshake(sock, key, is_listener=False)
    while not handshake.is_done():
        wait_readable([sock.fileno()], remaining_s(deadline))


def with_keepalive(sock: socket.socket) -> socket.socket:
    """The same socket, blocking and with keepalive, so that a lost peer is detected within 30 s."""
    sock.settimeout(None)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in SILENCE.items():
        if hasattr(socket, name):  # each system lacks some of these options
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return sock


def remaining_s(deadline: float) -> float:
    """Seconds until `deadline`; raises TimeoutError if it is over."""
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError("timed out")
    return remaining


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPeer:
    """A peer in its handshake, until the clock passes `deadline`."""

    handshake: SocketHandshake
    address: str
    deadline: float


class Admission:
    """The handshakes of all peers of a listener, at the same time, so that a silent peer does not block others; at most
    `MAX_PENDING`, a further one ends the oldest.

    Args:
        handshake_s: longest time of a whole handshake.
    """

    def __init__(self, listener: socket.socket, key: bytes | None, *, handshake_s: float) -> None:
        require_long(key)
        listener.setblocking(False)
        self._listener = listener
        self._key = key
        self._handshake_s = handshake_s
        self._pending: dict[int, PendingPeer] = {}  # by file number, oldest first

    def accept(self, timeout_s: float) -> socket.socket | None:
        """The next peer that passes, as a blocking socket; None on timeout, or after a peer was rejected.

        Unfinished handshakes continue in the next call.
        """
        end = time.monotonic() + timeout_s
        while True:
            for number, peer in self._pending.items():
                if time.monotonic() >= peer.deadline:
                    self._turn_away(number, "timed out")
                    return None
            next_end = min([end, *(peer.deadline for peer in self._pending.values())])
            ready = wait_readable([self._listener.fileno(), *self._pending], max(0.0, next_end - time.monotonic()))
            if self._listener.fileno() in ready and not self._start_handshake():
                return None
            for number in [number for number in ready if number in self._pending]:
                try:
                    if self._pending[number].handshake.is_done():
                        sock = with_keepalive(self._pending[number].handshake.sock)
                        del self._pending[number]
                        return sock
                except OSError as error:
                    self._turn_away(number, str(error))
                    return None
            if not ready and time.monotonic() >= end:
                return None

    def close(self) -> None:
        """Disconnect all peers in a handshake; the caller closes the listener."""
        for peer in self._pending.values():
            peer.handshake.sock.close()
        self._pending.clear()

    def _start_handshake(self) -> bool:
        """Begin the handshake of the next waiting peer; False if it ended at once."""
        try:
            sock, where = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return True
        if len(self._pending) >= MAX_PENDING:
            self._turn_away(next(iter(self._pending)), "too many others came")
        try:
            handshake = SocketHandshake(sock, self._key, is_listener=True)
        except OSError as error:
            sock.close()
            logger.warning("turned away a connection from %s: %s", where[0], error)
            return False
        deadline = time.monotonic() + self._handshake_s
        self._pending[sock.fileno()] = PendingPeer(handshake=handshake, address=where[0], deadline=deadline)
        return True

    def _turn_away(self, number: int, reason: str) -> None:
        peer = self._pending.pop(number)
        peer.handshake.sock.close()
        logger.warning("turned away a connection from %s: %s", peer.address, reason)
