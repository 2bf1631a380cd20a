"""A process that brings up workers: it prepares what they need once, and forks one whenever the last one has ended.

A fork shares the prepared pages, so a worker that died is replaced in milliseconds rather than after another start of
Python, import of torch and read of the weights. Engine and nursery talk over a control socket: records of fixed size
up, single bytes down. When the engine goes, whatever the reason, the socket ends and so do nursery and worker.
"""

import ctypes
import os
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from time import monotonic
from typing import Final, TypeVar

from forerun.wires.channel import Channel

RECORD: Final = struct.Struct("<BIi4000s")  # news, pid, status, text
KILL, PRAISE = b"K", b"G"  # what the engine says: end the worker; it has done good work
FIRST_BACKOFF_S, MAX_BACKOFF_S, GIVE_UP_S = 0.1, 5.0, 300.0
MAX_FAILURES = 5  # workers in a row that ended without good work, before the nursery gives up for GIVE_UP_S
PR_SET_PDEATHSIG = 1

Prepared = TypeVar("Prepared")


class News(IntEnum):
    """What a nursery reports."""

    BORN = 1  # a worker, whose socket comes along
    ENDED = 2  # it ended with this status: a return code, or minus a signal
    GAVE_UP = 3  # too many ended too soon
    FAILED = 4  # preparing failed; the text says why


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One piece of news."""

    news: News
    pid: int = 0
    status: int = 0
    text: str = ""

    def pack(self) -> bytes:
        return RECORD.pack(self.news, self.pid, self.status, self.text.encode(errors="replace")[-4000:])

    @classmethod
    def unpack(cls, data: bytes) -> "Report":
        news, pid, status, text = RECORD.unpack(data)
        return cls(news=News(news), pid=pid, status=status, text=text.rstrip(b"\0").decode(errors="replace"))


def nurse(control: socket.socket, prepare: Callable[[], Prepared], serve: Callable[[Channel, Prepared], None]) -> None:
    """Keep one worker alive until the engine hangs up. Runs as the main thread of a process without other threads.

    Args:
        control: the engine's end of it closes when the engine ends.
        prepare: what every worker needs, made once.
        serve: a worker's life; it ends when its channel does.
    """
    try:
        prepared = prepare()
    except Exception:  # noqa: BLE001 - whatever it was, the engine must hear of it
        control.sendall(Report(news=News.FAILED, text=traceback.format_exc()).pack())
        return
    num_failures = 0
    while True:
        pid = _bear(control, prepared, serve)
        status, was_good = _watch(control, pid)
        if status is None:
            return
        control.sendall(Report(news=News.ENDED, pid=pid, status=status).pack())
        num_failures = 0 if was_good else num_failures + 1
        if num_failures >= MAX_FAILURES:
            control.sendall(Report(news=News.GAVE_UP).pack())
        if not _pause(control, _backoff_s(num_failures)):
            return


def die_with_parent(parent: int) -> None:
    """Have this process killed when its parent ends, also while it is stopped. Linux only; elsewhere sockets tell."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _bear(control: socket.socket, prepared: Prepared, serve: Callable[[Channel, Prepared], None]) -> int:
    """Fork a worker and hand the other end of its channel to the engine; return its pid."""
    theirs, ours = socket.socketpair()
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        code = 1
        try:
            die_with_parent(parent)
            control.close()
            theirs.close()
            serve(Channel(ours), prepared)
            code = 0
        except Exception:  # noqa: BLE001 - the process ends with it, and says so
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    ours.close()
    socket.send_fds(control, [Report(news=News.BORN, pid=pid).pack()], [theirs.fileno()])
    theirs.close()
    return pid


def _watch(control: socket.socket, pid: int) -> tuple[int | None, bool]:
    """Wait until the worker has ended; return its status, None when the engine has gone, and whether it was praised."""
    was_good = False
    while True:
        word = _hear(control, 0.02 if not hasattr(os, "pidfd_open") else None, pid)
        if word == b"":
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None, was_good
        if word == KILL:
            os.kill(pid, signal.SIGKILL)
        was_good = was_good or word == PRAISE
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), was_good


def _hear(control: socket.socket, timeout_s: float | None, pid: int | None = None) -> bytes | None:
    """A byte from the engine, b"" when it has gone, None when time is up or the process `pid` has ended."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    pidfd = os.pidfd_open(pid) if pid is not None and hasattr(os, "pidfd_open") else None
    try:
        if pidfd is not None:
            poll.register(pidfd, select.POLLIN)
        ready = poll.poll(None if timeout_s is None else 1e3 * timeout_s)
    finally:
        if pidfd is not None:
            os.close(pidfd)
    if not any(descriptor == control.fileno() for descriptor, _ in ready):
        return None
    try:
        return control.recv(1)
    except ConnectionError:
        return b""


def _pause(control: socket.socket, seconds: float) -> bool:
    """Wait before the next worker; False when the engine has gone."""
    end = monotonic() + seconds
    while (left := end - monotonic()) > 0:
        if _hear(control, left) == b"":
            return False
    return True


def _backoff_s(num_failures: int) -> float:
    if num_failures >= MAX_FAILURES:
        return GIVE_UP_S
    return min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** max(0, num_failures - 1))
