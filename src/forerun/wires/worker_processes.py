"""Supplies of connections to workers, one at a time, see `drafting.remote.connection.WorkerSupply`.

One starts and restarts a forkserver, which restarts crashed workers of this machine; the other reconnects to a worker
of another machine.
"""

import socket
import threading
import weakref
from collections.abc import Callable
from time import monotonic
from typing import Final

from forerun.core.affinity import own_cores, run_on
from forerun.core.errors import DrafterUnreachableError
from forerun.wires.channel import Channel, require_channels, wait_readable
from forerun.wires.children import END_S, Child, Command, StarvationWatch, end_child, start_child
from forerun.wires.endpoint import Address, connect
from forerun.wires.forkserver import EVENTS, HEALTHY, KILL, EventKind, WorkerEvent, delay_s
from forerun.wires.frames import FrameReader

CONNECT_S: Final = 5.0  # for name lookup, connection and handshake, before the next attempt
MAX_RECEIVED_BYTES: Final = 1 << 16  # per call
MAX_DESCRIPTORS: Final = 16  # per call; a worker that started has one


class Backoff:
    """Determines when a failed action may be tried again."""

    def __init__(self) -> None:
        self._num_failures = 0
        self._retry_at = 0.0

    def is_over(self) -> bool:
        """Whether the next attempt may begin."""
        return monotonic() >= self._retry_at

    def told_failure(self) -> None:
        """A failure, or an attempt, which counts as a failure until it succeeds."""
        self._num_failures += 1
        self._retry_at = monotonic() + delay_s(self._num_failures)

    def told_success(self) -> None:
        """A success, so that the next failure counts as the first one."""
        self._num_failures = 0

    def give_up(self) -> None:
        """Never try again."""
        self._retry_at = float("inf")


class LocalSupply:
    """Workers of a forkserver, a child process of this one that ends with it.

    Args:
        command: makes the forkserver's command line.
    """

    def __init__(self, command: Command) -> None:
        self._command = command
        self._cores = own_cores()
        self._backoff = Backoff()
        self._starvation = StarvationWatch()
        self.trouble = ""
        self.pid: int | None = None
        self._control: socket.socket | None = None
        self._finalizer: Callable[[], object] = lambda: None
        self._start()

    def take(self) -> Channel | None:
        if self._control is None:
            if not self._backoff.is_over():
                return None
            self._start()
        channel = None
        while (control := self._control) is not None and (events := self._read(control)):
            for event in events:
                if event.kind is EventKind.STARTED:
                    if channel is not None:  # a later worker's channel replaces an earlier one's
                        channel.close()
                    channel = Channel(socket.socket(fileno=self._descriptors.pop(0)))
                self._told(event)
        return channel

    def wait(self, timeout_s: float) -> Channel | None:
        end = monotonic() + timeout_s
        while (left := end - monotonic()) > 0:
            channel = self.take()
            if channel is not None or self._control is None:
                return channel
            wait_readable([self._control.fileno()], left)
        return None

    def is_starved(self) -> bool:
        return self._starvation.is_starved(self.pid)

    def replace(self) -> None:
        self._tell(KILL)

    def mark_healthy(self) -> None:
        self._backoff.told_success()
        self._tell(HEALTHY)

    def close(self) -> None:
        self._finalizer()
        self._control = None
        self._backoff.give_up()

    def _start(self) -> None:
        # not on the cores to which the calling thread is bound now
        self._process, ours = run_on(self._cores, lambda: start_child(self._command))
        ours.setblocking(False)
        self._control = ours
        self._reader = FrameReader(EVENTS)
        self._descriptors = list[int]()
        self._finalizer = weakref.finalize(self, _end, self._process, ours)

    def _read(self, control: socket.socket) -> list[WorkerEvent]:
        """The events received so far, with their descriptors; none if there are none now."""
        try:
            data, descriptors, _, _ = socket.recv_fds(control, MAX_RECEIVED_BYTES, MAX_DESCRIPTORS)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
            descriptors = []
        if not data:
            self._restart_later()
        self._descriptors += descriptors
        return self._reader.feed(data)

    def _told(self, event: WorkerEvent) -> None:
        match event.kind:
            case EventKind.STARTED:
                self.pid = event.pid
                self.trouble = ""
            case EventKind.ENDED:
                how = f"signal {-event.status}" if event.status < 0 else f"status {event.status}"
                self.trouble = f"the drafter's process ended with {how}; another one is being started"
            case EventKind.GAVE_UP:
                self.trouble = "the drafter's process ended too often; it is tried again in 5 minutes"
            case EventKind.FAILED:
                self.trouble = f"the drafter's process failed to start:\n{event.text}"

    def _restart_later(self) -> None:
        """Restart a forkserver that has ended, after a delay that grows each time."""
        self._finalizer()
        self._control = None
        self._backoff.told_failure()
        self.trouble = self.trouble or "the drafter's process has ended; another one is being started"

    def _tell(self, command: bytes) -> None:
        if self._control is not None:
            try:
                self._control.send(command)
            except OSError:
                self._restart_later()


def _end(process: Child, control: socket.socket) -> None:
    """Hang up, and end the forkserver. It is not a method, so that it can run as a finalizer."""
    control.close()
    end_child(process, monotonic() + END_S)


class RemoteSupply:
    """Connections to a worker at an address, made in a background thread because connecting takes time."""

    def __init__(self, address: Address, key: bytes | None) -> None:
        require_channels()
        self._address = address
        self._key = key
        self.pid = None
        self.trouble = ""
        self._made: Channel | None = None
        self._attempt: threading.Thread | None = None
        self._present: Channel | None = None
        self._backoff = Backoff()
        self._is_closed = False

    def take(self) -> Channel | None:
        if self._attempt is not None:
            if self._attempt.is_alive():
                return None
            self._attempt = None
            self._present = self._made
            self._made = None
            return self._present
        if (self._present is None or not self._present.is_open) and self._backoff.is_over():
            self._backoff.told_failure()  # counts as a failure until the worker works
            self._attempt = threading.Thread(target=self._connect, name="forerun-connect", daemon=True)
            self._attempt.start()
        return None

    def wait(self, timeout_s: float) -> Channel | None:
        end = monotonic() + timeout_s
        while monotonic() < end and not self._is_closed:
            channel = self.take()
            if channel is not None:
                return channel
            if self._attempt is None:
                return None
            self._attempt.join(end - monotonic())
        return None

    def is_starved(self) -> bool:
        return False  # unknown for a remote process

    def replace(self) -> None:
        if self._present is not None:
            self._present.close()

    def mark_healthy(self) -> None:
        self._backoff.told_success()

    def close(self) -> None:
        self._is_closed = True
        self._backoff.give_up()
        self.replace()

    def _connect(self) -> None:
        try:
            made = Channel(connect(self._address, self._key, CONNECT_S))
        except DrafterUnreachableError as error:
            self.trouble = str(error)
            return
        if self._is_closed:
            made.close()
        else:
            self.trouble = ""
            self._made = made
