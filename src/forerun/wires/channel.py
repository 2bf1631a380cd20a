"""A byte stream between two processes; only `wait` blocks."""

import select
import socket
import sys
import time
from collections.abc import Iterable

from forerun.core.errors import require

MAX_RECEIVED_BYTES = 1 << 20  # per call, so that a busy peer cannot occupy the caller
INTERNET = (socket.AF_INET, socket.AF_INET6)
# Python ignores SIGPIPE, but a program that embeds Python may not; macOS has no such flag.
NO_SIGNAL: int = getattr(socket, "MSG_NOSIGNAL", 0)
NOTHING = memoryview(b"")


def require_channels() -> None:
    """Raise ConfigError on Windows, which has no poll(), and whose child processes inherit no sockets."""
    require(
        sys.platform != "win32",
        "on Windows no other process drafts for a model or shares it: leave out --drafter parallel and --ranks, and "
        "start no worker",
    )


def wait_readable(descriptors: Iterable[int], timeout_s: float | None) -> list[int]:
    """The descriptors that are readable or at end of file; none after `timeout_s`."""
    poller = select.poll()  # not select(), which fails for file numbers from 1024 on
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poller.poll(None if timeout_s is None else 1e3 * timeout_s)]


class Channel:
    """One end of a connected stream socket, AF_UNIX or TCP. Only `wait` blocks; one thread at a time.

    Data is sent whole and in order, or not at all: `send` either refuses all of it or accepts all of it, so a caller's
    frames are never cut, and at most one of them is buffered here. Network errors set `is_open` to False and raise no
    exception.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        if sock.family in INTERNET:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._is_open = True
        self._rest = NOTHING
        # Reused, because allocating a megabyte for a few bytes would cost more than the system call.
        self._received = memoryview(bytearray(MAX_RECEIVED_BYTES))
        self._poller = select.poll()
        self._poller.register(sock, select.POLLIN)

    @property
    def is_open(self) -> bool:
        """False once this end is closed, or a call has found that the other end is closed."""
        return self._is_open

    def send(self, data: bytes) -> bool:
        """True if `data` was accepted: written, or partly written and the rest buffered for later calls.

        False while an earlier rest is not written yet, and after the channel is closed.
        """
        if self._rest:
            self.flush()
        if self._rest or not self._is_open:
            return False
        self._rest = memoryview(data)
        self.flush()
        return self._is_open

    def flush(self) -> None:
        """Write as much of the buffered rest as possible now."""
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
        """The bytes available now, at most 1 MiB; empty if there are none.

        A broken channel can still be read: bytes received before the end are delivered first.
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
        """True as soon as `receive` has data or the end; False after `timeout_s`, or never if that is None.

        Meanwhile a buffered rest is written as the other end makes room. poll() rounds the timeout up to whole
        milliseconds; with 0 it does not wait.
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
        """Close this end; a buffered rest is dropped."""
        self._break()
        self._sock.close()

    def _break(self) -> None:
        self._is_open = False
        self._rest = NOTHING
