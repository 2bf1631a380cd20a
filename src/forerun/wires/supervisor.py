"""Supervises workers on this machine: starts and restarts the forkserver, and receives each worker's connection.

`forkserver` restarts a crashed worker; `remote_worker` reconnects to a worker on another machine.
"""

import socket
import subprocess
import weakref
from collections.abc import Callable
from time import monotonic
from typing import Final

from forerun.runtime.affinity import own_cores, run_on
from forerun.wires.backoff import Backoff
from forerun.wires.channel import Channel, wait_readable
from forerun.wires.children import END_S, Command, StarvationWatch, see_off, start_child
from forerun.wires.forkserver import EVENTS, HEALTHY, KILL, EventKind, WorkerEvent
from forerun.wires.frames import FrameReader

MAX_RECEIVED_BYTES: Final = 1 << 16  # per call
MAX_DESCRIPTORS: Final = 16  # per call; a worker that started has one


class LocalSupply:
    """Workers of a forkserver, a child process of this one that ends with it.

    Args:
        command: makes the forkserver's command line.
    """

    def __init__(self, command: Command) -> None:
        self._command, self._cores = command, own_cores()
        self._backoff, self._starvation = Backoff(), StarvationWatch()
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
                self._note(event)
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
        self._backoff.note_success()
        self._tell(HEALTHY)

    def close(self) -> None:
        self._finalizer()
        self._control = None
        self._backoff.give_up()

    def _start(self) -> None:
        # not on the cores to which the calling thread is bound now
        self._process, ours = run_on(self._cores, lambda: start_child(self._command))
        ours.setblocking(False)
        self._control, self._reader, self._descriptors = ours, FrameReader(EVENTS), list[int]()
        self._finalizer = weakref.finalize(self, _end, self._process, ours)

    def _read(self, control: socket.socket) -> list[WorkerEvent]:
        """The events that have come, whose descriptors are kept; none if there are none now."""
        try:
            data, descriptors, _, _ = socket.recv_fds(control, MAX_RECEIVED_BYTES, MAX_DESCRIPTORS)
        except BlockingIOError:
            return []
        except OSError:
            data, descriptors = b"", []
        if not data:
            self._restart_later()
        self._descriptors += descriptors
        return self._reader.feed(data)

    def _note(self, event: WorkerEvent) -> None:
        match event.kind:
            case EventKind.STARTED:
                self.pid, self.trouble = event.pid, ""
            case EventKind.ENDED:
                how = f"signal {-event.status}" if event.status < 0 else f"status {event.status}"
                self.trouble = f"the drafter's process ended with {how}; another one is coming up"
            case EventKind.GAVE_UP:
                self.trouble = "the drafter's process ended too often; it is tried again in 5 minutes"
            case EventKind.FAILED:
                self.trouble = f"the drafter's process could not be made ready:\n{event.text}"

    def _restart_later(self) -> None:
        """Restart a forkserver that has ended, after a delay that grows each time."""
        self._finalizer()
        self._control = None
        self._backoff.note_failure()
        self.trouble = self.trouble or "the drafter's process has gone; another one is coming up"

    def _tell(self, command: bytes) -> None:
        if self._control is not None:
            try:
                self._control.send(command)
            except OSError:
                self._restart_later()


def _end(process: "subprocess.Popen[bytes]", control: socket.socket) -> None:
    """Hang up, and end the forkserver. It is not a method, so that it can run as a finalizer."""
    control.close()
    see_off(process, monotonic() + END_S)
