"""Where a target gets its connections to a worker from: a nursery of its own, or an address."""

import os
import select
import socket
import struct
import subprocess
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Final, Protocol

from forerun.core.errors import DrafterUnreachableError
from forerun.runtime.affinity import own_cores, run_on
from forerun.wires.channel import Channel
from forerun.wires.endpoint import Address, connect
from forerun.wires.forkserver import KILL, PRAISE, RECORD, News, Report

END_S: Final = 2.0  # how long a nursery may take to end by itself
FIRST_RETRY_S, MAX_RETRY_S = 0.1, 5.0
CONNECT_S: Final = 5.0
DESCRIPTOR: Final = struct.Struct("@i")
WATCH_S, MAX_WATCH_S = 0.3, 10.0  # a judgement rests on a stretch of at least and at most so many seconds
STARVED_SHARE: Final = 0.2  # a runnable process that is given less of a core than this is starved


class Supply(Protocol):
    """Gives connections to a worker, one after another."""

    @property
    def trouble(self) -> str:
        """Why there is no worker just now, in words; empty when nothing is wrong."""
        ...

    @property
    def pid(self) -> int | None:
        """The present worker, where it is a process of this host."""
        ...

    def take(self) -> Channel | None:
        """A fresh connection if one has come up; never blocks."""
        ...

    def wait(self, timeout_s: float) -> Channel | None:
        """The same, waiting for it. None when time is up, or there will be none."""
        ...

    def is_starved(self) -> bool:
        """True when the worker could run and is not let: it is silent for no fault of its own."""
        ...

    def replace(self) -> None:
        """The present worker is of no use: end it, and bring up another one."""
        ...

    def praise(self) -> None:
        """The present worker has done good work: its end, when it comes, is no failed start."""
        ...

    def close(self) -> None:
        """End it all."""
        ...


class LocalSupply:
    """Workers of a nursery, a child process of this one that is ended with it.

    Args:
        command: the nursery's command line, given the descriptor of its control socket and the pid it is to end with,
            0 for none.
    """

    def __init__(self, command: Callable[[int, int], Sequence[str]]) -> None:
        self._command, self._cores = command, own_cores()
        self.trouble = ""
        self.pid: int | None = None
        self._num_failures, self._retry_at = 0, 0.0
        self._used_s, self._judged_at = 0.0, monotonic()
        self._held, self._descriptor = b"", None
        self._control: socket.socket | None = None
        self._finalizer: Callable[[], object] = lambda: None
        self._start()

    def take(self) -> Channel | None:
        if self._control is None:
            if monotonic() < self._retry_at:
                return None
            self._start()
        channel = None
        while (control := self._control) is not None:
            report, descriptor = self._read(control)
            if report is None:
                break
            if descriptor is not None:  # a later worker's channel replaces an earlier one's
                if channel is not None:
                    channel.close()
                channel = Channel(socket.socket(fileno=descriptor))
            self._note(report)
        return channel

    def wait(self, timeout_s: float) -> Channel | None:
        end = monotonic() + timeout_s
        while (left := end - monotonic()) > 0:
            channel = self.take()
            if channel is not None or self._control is None:
                return channel
            poll = select.poll()
            poll.register(self._control, select.POLLIN)
            poll.poll(1e3 * left)
        return None

    def is_starved(self) -> bool:
        """Judge by the processor time it is given; a runnable worker not yet watched for a while is given the doubt."""
        state, used_s = process_state(self.pid) if self.pid else ("", 0.0)
        watched_s = monotonic() - self._judged_at
        if state != "R":
            return False
        if watched_s < WATCH_S:
            return True
        share = (used_s - self._used_s) / watched_s
        self._used_s, self._judged_at = used_s, monotonic()
        return watched_s > MAX_WATCH_S or share < STARVED_SHARE

    def replace(self) -> None:
        self._tell(KILL)

    def praise(self) -> None:
        self._num_failures = 0
        self._tell(PRAISE)

    def close(self) -> None:
        self._finalizer()
        self._control = None
        self._retry_at = float("inf")

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        # Linux ties a child to the thread that made it; only the main thread is sure to last as long as the process.
        parent = os.getpid() if threading.current_thread() is threading.main_thread() else 0
        self._process = run_on(  # not those that the calling thread keeps to just now
            self._cores,
            lambda: subprocess.Popen(
                self._command(theirs.fileno(), parent),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the engine to act on
            ),
        )
        theirs.close()
        self._control, self._held, self._descriptor = ours, b"", None
        self._finalizer = weakref.finalize(self, _end, self._process, ours)

    def _read(self, control: socket.socket) -> tuple[Report | None, int | None]:
        """The next report with the descriptor that came along; None when there is none now."""
        try:
            data, ancillary, _, _ = control.recvmsg(RECORD.size - len(self._held), socket.CMSG_SPACE(DESCRIPTOR.size))
        except BlockingIOError:
            return None, None
        except OSError:
            data, ancillary = b"", []
        if not data:
            self._lose_nursery()
            return None, None
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                (self._descriptor,) = DESCRIPTOR.unpack(payload)
        self._held += data
        if len(self._held) < RECORD.size:
            return None, None
        report, descriptor = Report.unpack(self._held), self._descriptor
        self._held, self._descriptor = b"", None
        return report, descriptor

    def _note(self, report: Report) -> None:
        match report.news:
            case News.BORN:
                self.pid, self.trouble = report.pid, ""
            case News.ENDED:
                how = f"signal {-report.status}" if report.status < 0 else f"status {report.status}"
                self.trouble = f"the drafter's process ended with {how}; another one is coming up"
            case News.GAVE_UP:
                self.trouble = "the drafter's process ended too often; it is tried again in 5 minutes"
            case News.FAILED:
                self.trouble = f"the drafter's process could not be made ready:\n{report.text}"

    def _lose_nursery(self) -> None:
        """The nursery itself has ended: bring up another one, later each time."""
        self._finalizer()
        self._control = None
        self._num_failures += 1
        self._retry_at = monotonic() + retry_s(self._num_failures)
        self.trouble = self.trouble or "the drafter's process has gone; another one is coming up"

    def _tell(self, word: bytes) -> None:
        if self._control is not None:
            try:
                self._control.send(word)
            except OSError:
                self._lose_nursery()


class RemoteSupply:
    """Connections to a worker that listens elsewhere; made in the background, since reaching it takes time."""

    def __init__(self, address: Address, key: bytes | None) -> None:
        self._address, self._key = address, key
        self.pid, self.trouble = None, ""
        self._made: Channel | None = None
        self._attempt: threading.Thread | None = None
        self._present: Channel | None = None
        self._num_tries, self._retry_at, self._is_closed = 0, 0.0, False  # tries since a worker was last praised

    def take(self) -> Channel | None:
        if self._attempt is not None:
            if self._attempt.is_alive():
                return None
            self._attempt = None
            self._present, self._made = self._made, None
            return self._present
        if (self._present is None or not self._present.is_open) and monotonic() >= self._retry_at:
            self._num_tries += 1
            self._retry_at = monotonic() + retry_s(self._num_tries)
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
        return False  # no way to tell from here

    def replace(self) -> None:
        if self._present is not None:
            self._present.close()

    def praise(self) -> None:
        self._num_tries = 0

    def close(self) -> None:
        self._is_closed, self._retry_at = True, float("inf")
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
            self.trouble, self._made = "", made


def retry_s(num_failures: int) -> float:
    """How long to leave a worker alone that could not be had so many times in a row."""
    return min(MAX_RETRY_S, FIRST_RETRY_S * 2.0 ** min(num_failures - 1, 16))  # bounded, or it overflows one day


def process_state(pid: int) -> tuple[str, float]:
    """The state letter of a process and the processor seconds it has used; ("", 0.0) where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", 0.0
    return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _end(process: "subprocess.Popen[bytes]", control: socket.socket) -> None:
    """Hang up, and see the nursery off. No part of the supply's object, so that it can run when that is gone."""
    control.close()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
