"""Mutual authentication of two processes by a shared key.

Both sides send a hello: magic, version, whether they have a key, and a fresh nonce. If they have one, the connecting
side then proves that it has the key, and only after that the listening side does, so an unauthenticated peer gets no
proof from a listener. A proof is HMAC-SHA256 over role, own nonce and peer's nonce. A replayed proof fails because the
nonces are fresh; a proof that is reflected, or relayed from another connection, fails because the roles differ.
"""

import hmac
import secrets
import socket
import struct
from collections.abc import Generator
from typing import TypeAlias

MAGIC = b"forerun\n"
VERSION = 2
NONCE_BYTES = 32
PROOF_BYTES = 32
GREETING = MAGIC + bytes([VERSION])
HUNG_UP = "the other side hung up during the handshake: do both have the same key?"
HELLO = struct.Struct(f">?{NONCE_BYTES}s")  # what follows the greeting: has a key, nonce
CONNECTOR = b"forerun connector"
LISTENER = b"forerun listener"

Handshake: TypeAlias = Generator[tuple[bytes, int], bytes, None]


def shake_hands(key: bytes | None, *, is_listener: bool) -> Handshake:
    """One side of a handshake, without I/O: a generator that yields the bytes to send and how many to receive next.

    The caller sends the received bytes into it. It returns once the peer is authenticated. It never requests bytes
    beyond the handshake.

    Raises:
        ConnectionAbortedError: the peer does not have the key.
    """
    nonce = secrets.token_bytes(NONCE_BYTES)
    # The greeting is read separately, so that another kind of program is detected immediately and not on timeout.
    greeting = yield GREETING + HELLO.pack(key is not None, nonce), len(GREETING)
    if not greeting.startswith(MAGIC):
        raise ConnectionAbortedError("the other side is not a forerun process")
    if greeting != GREETING:
        raise ConnectionAbortedError("the other side speaks another version: run the same forerun on both")
    is_keyed, peer_nonce = HELLO.unpack((yield b"", HELLO.size))
    if is_keyed != (key is not None):
        with_key, without = ("the other side", "this one") if is_keyed else ("this side", "the other one")
        raise ConnectionAbortedError(f"{with_key} has a key and {without} has none: give both the same")
    if peer_nonce == nonce:
        # An echo, or a self-connection, which TCP permits on an ephemeral port without a listener.
        raise ConnectionAbortedError("the other side only sends back what it receives")
    if key is None:
        return
    own, peer = (LISTENER, CONNECTOR) if is_listener else (CONNECTOR, LISTENER)
    own_proof = prove(key, own + nonce + peer_nonce)
    proof = yield (b"" if is_listener else own_proof), PROOF_BYTES
    if not hmac.compare_digest(proof, prove(key, peer + peer_nonce + nonce)):
        raise ConnectionAbortedError("the other side has another key")
    if is_listener:
        yield own_proof, 0


def prove(key: bytes, statement: bytes) -> bytes:
    return hmac.digest(key, statement, "sha256")


class SocketHandshake:
    """A handshake over a connected socket. No method blocks.

    Raises:
        OSError: the peer hung up, or does not have the key; also from `is_done`.
    """

    def __init__(self, sock: socket.socket, key: bytes | None, *, is_listener: bool) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._received = b""
        self._steps = shake_hands(key, is_listener=is_listener)
        self._num_wanted = self._send(*next(self._steps))

    def is_done(self) -> bool:
        """Read the received bytes; True once the peer is authenticated."""
        while True:
            if num_missing := self._num_wanted - len(self._received):
                try:
                    chunk = self.sock.recv(num_missing)
                except BlockingIOError:
                    return False
                if not chunk:
                    raise ConnectionAbortedError(HUNG_UP)
                self._received += chunk
                continue
            received = self._received
            self._received = b""
            try:
                self._num_wanted = self._send(*self._steps.send(received))
            except StopIteration:
                return True

    def _send(self, data: bytes, num_wanted: int) -> int:
        if self.sock.send(data) < len(data):  # under a hundred bytes, which fit into the buffer of a new connection
            raise ConnectionAbortedError("the other side takes no data")
        return num_wanted
