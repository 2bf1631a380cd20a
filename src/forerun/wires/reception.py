"""Who comes to a listener, several at a time, so that a stranger who says nothing holds up nobody else."""

import logging
import select
import socket
from time import monotonic
from typing import Final

from forerun.wires.endpoint import HUNG_UP, require_long, settle
from forerun.wires.handshake import shake_hands

MAX_GUESTS: Final = 64  # handshakes at a time; whoever knows the key passes in a few network round trips

logger = logging.getLogger(__name__)


class Guest:
    """A connection whose handshake goes on. Nothing here blocks.

    Raises:
        OSError: the peer hung up, or is somebody else.
    """

    def __init__(self, sock: socket.socket, host: str, key: bytes | None, deadline: float) -> None:
        self.sock, self.host, self.deadline = sock, host, deadline
        sock.setblocking(False)
        self._talk, self._heard = shake_hands(key, is_listener=True), b""
        self._num_wanted = self._tell(next(self._talk))

    def has_passed(self) -> bool:
        """Read what has come; True once the peer has shown who it is."""
        while True:
            if len(self._heard) < self._num_wanted:
                try:
                    chunk = self.sock.recv(self._num_wanted - len(self._heard))
                except BlockingIOError:
                    return False
                if not chunk:
                    raise ConnectionAbortedError(HUNG_UP)
                self._heard += chunk
                continue
            heard, self._heard = self._heard, b""
            try:
                self._num_wanted = self._tell(self._talk.send(heard))
            except StopIteration:
                return True

    def _tell(self, turn: tuple[bytes, int]) -> int:
        words, num_wanted = turn
        if self.sock.send(words) < len(words):  # of some hundred bytes, which any fresh connection takes at once
            raise ConnectionAbortedError("the other side takes no data")
        return num_wanted


class Reception:
    """The handshakes of all who connect to a listener, at most `MAX_GUESTS` at a time: one more ends the oldest.

    Args:
        handshake_s: how long a handshake may take as a whole.
    """

    def __init__(self, listener: socket.socket, key: bytes | None, *, handshake_s: float) -> None:
        require_long(key)
        listener.setblocking(False)
        self._listener, self._key, self._handshake_s = listener, key, handshake_s
        self._guests: dict[int, Guest] = {}  # by file number, oldest first

    def accept(self, timeout_s: float) -> socket.socket | None:
        """The next peer that passes, as a blocking socket; None when nobody did in time, or somebody was turned away.

        Handshakes that have begun go on in the next call.
        """
        end = monotonic() + timeout_s
        while True:
            if any(self._is_over(guest) for guest in [*self._guests.values()]):
                return None
            times = [end, *(guest.deadline for guest in self._guests.values())]
            ready = self._poll(max(0.0, min(times) - monotonic()))
            if self._listener.fileno() in ready and not self._let_in():
                return None
            for guest in [self._guests[number] for number in ready if number in self._guests]:
                try:
                    if guest.has_passed():
                        del self._guests[guest.sock.fileno()]
                        return settle(guest.sock)
                except OSError as error:
                    self._turn_away(guest, str(error))
                    return None
            if not ready and monotonic() >= end:
                return None

    def close(self) -> None:
        """Hang up on all whose handshake goes on; the listener is its owner's."""
        for guest in self._guests.values():
            guest.sock.close()
        self._guests.clear()

    def _poll(self, timeout_s: float) -> list[int]:
        poll = select.poll()  # not select(), which fails for file numbers from 1024 on
        for number in (self._listener.fileno(), *self._guests):
            poll.register(number, select.POLLIN)
        return [number for number, _ in poll.poll(1e3 * timeout_s)]

    def _let_in(self) -> bool:
        """Begin the handshake of the next one who waits; False where that ended at once."""
        try:
            sock, where = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return True
        if len(self._guests) >= MAX_GUESTS:
            self._turn_away(next(iter(self._guests.values())), "too many others came")
        try:
            self._guests[sock.fileno()] = Guest(sock, where[0], self._key, monotonic() + self._handshake_s)
        except OSError as error:
            sock.close()
            logger.warning("turned away a connection from %s: %s", where[0], error)
            return False
        return True

    def _is_over(self, guest: Guest) -> bool:
        if monotonic() < guest.deadline:
            return False
        self._turn_away(guest, "timed out")
        return True

    def _turn_away(self, guest: Guest, reason: str) -> None:
        del self._guests[guest.sock.fileno()]
        guest.sock.close()
        logger.warning("turned away a connection from %s: %s", guest.host, reason)
