"""Admission of peers at a listener, with concurrent handshakes, so that a silent peer does not block others."""

import logging
import socket
from dataclasses import dataclass
from time import monotonic
from typing import Final

from forerun.wires.channel import wait_readable
from forerun.wires.endpoint import require_long, settle
from forerun.wires.handshake import SocketHandshake

MAX_PENDING: Final = 64  # concurrent handshakes; a peer with the key passes in a few network round trips

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPeer:
    """A peer in its handshake, until the clock passes `deadline`."""

    handshake: SocketHandshake
    address: str
    deadline: float


class Admission:
    """The handshakes of all peers of a listener, at most `MAX_PENDING` at a time; a further one ends the oldest.

    Args:
        handshake_s: longest time of a whole handshake.
    """

    def __init__(self, listener: socket.socket, key: bytes | None, *, handshake_s: float) -> None:
        require_long(key)
        listener.setblocking(False)
        self._listener, self._key, self._handshake_s = listener, key, handshake_s
        self._pending: dict[int, PendingPeer] = {}  # by file number, oldest first

    def accept(self, timeout_s: float) -> socket.socket | None:
        """The next peer that passes, as a blocking socket; None on timeout, or after a peer was rejected.

        Unfinished handshakes continue in the next call.
        """
        end = monotonic() + timeout_s
        while True:
            for number, peer in self._pending.items():
                if monotonic() >= peer.deadline:
                    self._turn_away(number, "timed out")
                    return None
            next_end = min([end, *(peer.deadline for peer in self._pending.values())])
            ready = wait_readable([self._listener.fileno(), *self._pending], max(0.0, next_end - monotonic()))
            if self._listener.fileno() in ready and not self._begin_handshake():
                return None
            for number in [number for number in ready if number in self._pending]:
                try:
                    if self._pending[number].handshake.is_done():
                        sock = settle(self._pending[number].handshake.sock)
                        del self._pending[number]
                        return sock
                except OSError as error:
                    self._turn_away(number, str(error))
                    return None
            if not ready and monotonic() >= end:
                return None

    def close(self) -> None:
        """Disconnect all peers in a handshake; the caller closes the listener."""
        for peer in self._pending.values():
            peer.handshake.sock.close()
        self._pending.clear()

    def _begin_handshake(self) -> bool:
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
        deadline = monotonic() + self._handshake_s
        self._pending[sock.fileno()] = PendingPeer(handshake=handshake, address=where[0], deadline=deadline)
        return True

    def _turn_away(self, number: int, reason: str) -> None:
        peer = self._pending.pop(number)
        peer.handshake.sock.close()
        logger.warning("turned away a connection from %s: %s", peer.address, reason)
