"""Bytes in, bytes out, between two processes, without ever waiting unasked."""

import select
import socket
import time
from collections.abc import Iterable

MAX_RECEIVED_BYTES = 1 << 20  # per call, so that one busy peer cannot hold the caller
INTERNET = (socket.AF_INET, socket.AF_INET6)
# Python ignores SIGPIPE, a program that embeds it may not; macOS has no such flag.
NO_SIGNAL: int = getattr(socket, "MSG_NOSIGNAL", 0)
NOTHING = memoryview(b"")


def wait_readable(descriptors: Iterable[int], timeout_s: float | None) -> list[int]:
    """The descriptors that are readable or at their end; none if `timeout_s` is over first."""
    poller = select.poll()  # not select(), which fails for file numbers from 1024 on
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poller.poll(None if timeout_s is None else 1e3 * timeout_s)]


class Channel:
    """One end of a connected stream socket, AF_UNIX or TCP. Only `wait` blocks; one thread at a time.

    What is sent arrives whole and in order, or not at all: data is refused before its first byte is written or is
    taken to its last one, so the frames of a caller never break, and at most one of them is held back here. Whatever
    the network does shows in `is_open`, not in an exception.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        if sock.family in INTERNET:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._is_open = True
        self._rest = NOTHING
        # Reused, because a fresh megabyte for every few bytes would cost more than the system call.
        self._received = memoryview(bytearray(MAX_RECEIVED_BYTES))
        # Not select(), which fails for file numbers from 1024 on.
        self._poller = select.poll()
        self._poller.register(sock, select.POLLIN)

    @property
    def is_open(self) -> bool:
        """False once this end was closed, or a call has found that the other one is gone."""
        return self._is_open

    def send(self, data: bytes) -> bool:
        """True if `data` was taken: written, or partly written and the rest kept for later calls.

        False while an earlier rest is still not written, and once the channel is closed.
        """
        if self._rest:
            self.flush()
        if self._rest or not self._is_open:
            return False
        self._rest = memoryview(data)
        self.flush()
        return self._is_open

    def flush(self) -> None:
        """Write as much of the kept rest as fits now."""
        if not self._rest:
            return
        try:
            num_written = self._sock.send(self._rest, NO_SIGNAL)
        except BlockingIOError:
            return
        except OSError:
            self._break()
            return
        self._rest = self._rest[num_written:]

    def receive(self) -> bytes:
        """What is there now, 1 MiB at most; nothing if nothing is there.

        A channel found broken is read all the same: what came before the end is delivered before the end shows.
        """
        try:
            num_read = self._sock.recv_into(self._received)
        except BlockingIOError:
            return b""
        except OSError:
            num_read = 0
        if num_read == 0:
            self._break()
        return bytes(self._received[:num_read])

    def wait(self, timeout_s: float | None) -> bool:
        """True as soon as `receive` has data or the end; False after `timeout_s`, None for never.

        Meanwhile a kept rest is written as the other end makes room. The clock of poll() counts whole milliseconds,
        rounded up; with 0 it does not wait at all.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self._is_open:
            self._poller.modify(self._sock, select.POLLIN | select.POLLOUT if self._rest else select.POLLIN)
            remaining_ms = None if deadline is None else 1000 * max(0.0, deadline - time.monotonic())
            ready = self._poller.poll(remaining_ms)
            if not ready:
                return False
            self.flush()
            if ready[0][1] & ~select.POLLOUT:
                return True
        return True

    def close(self) -> None:
        """Close this end; a rest not yet written is dropped."""
        self._break()
        self._sock.close()

    def _break(self) -> None:
        self._is_open = False
        self._rest = NOTHING
