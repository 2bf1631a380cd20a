"""A process that loads what every worker needs once, and forks a new worker whenever the last one has ended.

A fork shares the loaded pages, so a worker that died is replaced in milliseconds, without starting Python, importing
torch and reading the weights again. Engine and forkserver communicate over a control socket: the forkserver sends
events as frames, the engine sends single bytes. When the engine ends for any reason, the socket is closed, and
forkserver and worker end too.
"""

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from time import monotonic
from typing import Final, TypeVar

from forerun.wires.channel import Channel, wait_readable
from forerun.wires.children import die_with_parent
from forerun.wires.frames import MessageKinds

KILL = b"K"  # the engine's message to kill the worker
HEALTHY = b"G"  # the engine's message that the worker works
ENGINE_GONE = b""  # end of socket
MAX_TEXT: Final = 4000  # characters of a traceback; its end is the most useful part
FIRST_DELAY_S: Final = 0.1  # short enough that a user does not notice a restart after a single crash
MAX_DELAY_S: Final = 5.0  # a process that is available again after hours is found within this time
MAX_FAILURES: Final = 5  # workers in a row that ended before they worked; then none is forked for `GIVE_UP_S`
GIVE_UP_S: Final = 300.0

Prepared = TypeVar("Prepared")


class EventKind(IntEnum):
    """The events that a forkserver reports."""

    STARTED = 1  # a worker has started; its socket is attached
    ENDED = 2  # it ended with this status: a return code, or minus a signal
    GAVE_UP = 3  # too many ended too soon
    FAILED = 4  # preparing failed; the text has the reason


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEvent:
    """One report."""

    kind: EventKind
    pid: int = 0
    status: int = 0
    text: str = ""


EVENTS: Final = MessageKinds[WorkerEvent](WorkerEvent)


def run_forkserver(
    control: socket.socket, prepare: Callable[[], Prepared], serve: Callable[[Channel, Prepared], None]
) -> None:
    """Keep one worker alive until the engine hangs up. Runs as the main thread of a process without other threads.

    Args:
        control: the control socket; the engine's end closes when the engine ends.
        prepare: makes what every worker needs; called once.
        serve: runs a worker; it returns when the worker's channel is closed.
    """
    try:
        prepared = prepare()
    except Exception:  # noqa: BLE001 - any failure must be reported to the engine
        text = traceback.format_exc().encode(errors="replace").decode()
        control.sendall(EVENTS.to_frame(WorkerEvent(kind=EventKind.FAILED, text=text[-MAX_TEXT:])))
        return
    num_failures = 0
    while True:
        pid, ended = _fork_worker(control, prepared, serve)
        status, was_healthy = _wait_for_end(control, pid, ended)
        os.close(ended)
        if status is None:
            return
        control.sendall(EVENTS.to_frame(WorkerEvent(kind=EventKind.ENDED, pid=pid, status=status)))
        num_failures = 0 if was_healthy else num_failures + 1
        if num_failures >= MAX_FAILURES:
            control.sendall(EVENTS.to_frame(WorkerEvent(kind=EventKind.GAVE_UP)))
        if not _pause(control, GIVE_UP_S if num_failures >= MAX_FAILURES else delay_s(max(1, num_failures))):
            return


def delay_s(num_failures: int) -> float:
    """Seconds to wait after `num_failures` in a row, at least one."""
    return min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** min(num_failures - 1, 16))  # bounded to avoid overflow


def _fork_worker(
    control: socket.socket, prepared: Prepared, serve: Callable[[Channel, Prepared], None]
) -> tuple[int, int]:
    """Fork a worker and send the other end of its channel to the engine.

    Returns:
        its pid, and a descriptor that becomes readable when it has ended, whatever the reason.
    """
    engines, workers = socket.socketpair()
    ended, held_while_alive = os.pipe()  # programs that the worker starts do not inherit it
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            die_with_parent(parent)
            control.close()
            engines.close()
            serve(Channel(workers), prepared)
            code = 0
        except Exception:  # noqa: BLE001 - the process logs it and ends
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(held_while_alive)
    workers.close()
    socket.send_fds(control, [EVENTS.to_frame(WorkerEvent(kind=EventKind.STARTED, pid=pid))], [engines.fileno()])
    engines.close()
    return pid, ended


def _wait_for_end(control: socket.socket, pid: int, ended: int) -> tuple[int | None, bool]:
    """Wait until the worker has ended; return its status (None if the engine has ended) and whether it worked."""
    was_healthy = False
    while True:
        ready = wait_readable([control.fileno(), ended], None)
        command = _read_command(control) if control.fileno() in ready else None
        was_healthy = was_healthy or command == HEALTHY
        if command in (KILL, ENGINE_GONE):
            os.kill(pid, signal.SIGKILL)
        if command == ENGINE_GONE or ended in ready:
            _, status = os.waitpid(pid, 0)
            return None if command == ENGINE_GONE else os.waitstatus_to_exitcode(status), was_healthy


def _read_command(control: socket.socket) -> bytes:
    try:
        return control.recv(1)
    except ConnectionError:
        return ENGINE_GONE


def _pause(control: socket.socket, seconds: float) -> bool:
    """Wait before the next worker; False if the engine has ended."""
    end = monotonic() + seconds
    while (left := end - monotonic()) > 0:
        if wait_readable([control.fileno()], left) and _read_command(control) == ENGINE_GONE:
            return False
    return True
