"""Workers on a wire: child processes with a socket, their start, their end, and whether they get CPU time.

This is how this package starts its own processes, but for `bounded_child`, which is asked one question at a time.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Final, TypeAlias

from forerun.wires.channel import require_channels

# Makes a command line from the descriptor of the child's socket and the pid of the process with which it ends, 0: none.
Command: TypeAlias = Callable[[int, int], Sequence[str]]
Child: TypeAlias = subprocess.Popen[bytes]
END_S: Final = 2.0  # time for a process to end before it is killed
PR_SET_PDEATHSIG: Final = 1  # Linux, <sys/prctl.h>
MIN_WATCH_S: Final = 0.3  # shortest interval for an estimate of the CPU share
MAX_WATCH_S: Final = 10.0  # longest interval that reflects the process's present state
STARVED_SHARE: Final = 0.2  # a runnable process that is given less of a core than this is starved


def start_child(command: Command, inherited: Sequence[int] = ()) -> tuple[Child, socket.socket]:
    """Start a process that inherits one end of a socket pair, and these descriptors with the same numbers.

    Returns:
        the process, and the other end.

    Raises:
        ConfigError: the system is Windows.
    """
    require_channels()
    ours, theirs = socket.socketpair()
    # Linux ties a child to the thread that started it; only the main thread always lives as long as the process.
    parent = os.getpid() if threading.current_thread() is threading.main_thread() else 0
    with theirs:
        process = subprocess.Popen(
            command(theirs.fileno(), parent),
            pass_fds=[theirs.fileno(), *inherited],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # only this process handles Ctrl-C
        )
    return process, ours


def die_with_parent(parent: int) -> None:
    """Kill this process when its parent ends, even while stopped. Linux only; elsewhere it sees its sockets close."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def end_child(process: Child, deadline: float) -> None:
    """Wait for a process to end until `deadline`, then kill it; one that a signal has stopped is killed at once."""
    if is_stopped(process.pid):
        process.kill()
    try:
        process.wait(max(0.0, deadline - monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def end_all_that_name(folder: str) -> None:
    """Kill every process with this folder in its command line, and all that it has started. Linux only.

    All are stopped before the first one is killed, so that none starts others, or reports an end.
    """
    stopped: list[int] = []
    while found := [pid for pid in those_that_name(folder) if pid not in stopped]:
        for pid in found:
            send(pid, signal.SIGSTOP)
        stopped += found
    for pid in reversed(stopped):  # children last, since their end ends those that are tied to this process
        send(pid, signal.SIGKILL)


def those_that_name(folder: str) -> list[int]:
    """Pids of these processes, parents first, without this process."""
    parents = dict[int, int]()
    named = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            if folder.encode() in (place / "cmdline").read_bytes():
                named.append(int(place.name))
    found = [pid for pid in named if pid != os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid and child not in found]
    return found


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


class StarvationWatch:
    """Distinguishes a hanging process from one that is silent because it gets no CPU time."""

    def __init__(self) -> None:
        self._used_s = 0.0
        self._judged_at = monotonic()

    def is_starved(self, pid: int | None) -> bool:
        """True if the process is runnable but gets no CPU time, or was not watched for long enough yet."""
        state, used_s = process_state(pid) if pid else ("", 0.0)
        watched_s = monotonic() - self._judged_at
        if state != "R":
            return False
        if watched_s < MIN_WATCH_S:
            return True
        share = (used_s - self._used_s) / watched_s
        self._used_s = used_s
        self._judged_at = monotonic()
        return watched_s > MAX_WATCH_S or share < STARVED_SHARE


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process; False if the system does not report it."""
    return process_state(pid)[0] in ("T", "t")


def process_state(pid: int) -> tuple[str, float]:
    """The state letter of a process and its CPU seconds; ("", 0.0) if the system does not report them."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return "", 0.0
    return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
