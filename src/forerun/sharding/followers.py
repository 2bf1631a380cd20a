"""A leader's side of the processes that share its model."""

import os
import select
import socket
import subprocess
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Final, TypeAlias

from forerun.core.errors import RankLostError
from forerun.model.inputs import ForwardInput
from forerun.model.step import Told
from forerun.runtime.interrupts import deferred_interrupts
from forerun.sharding.messages import to_message
from forerun.wires.starvation import process_state

SEND_S: Final = 10.0  # a follower that has not read for so long counts as stopped
LAST_WORDS_S: Final = 0.5  # for a process that has ended to be seen as ended
END_S: Final = 2.0  # for followers to end by themselves before they are killed
READY: Final = b"ready"  # what a follower says first
MAX_REASON_BYTES: Final = 4000
Command: TypeAlias = Callable[[int, int, int], Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerProcess:
    """One follower."""

    rank: int
    process: "subprocess.Popen[bytes]"
    control: socket.socket


class Followers:
    """All ranks but the leader's, each in a process of its own.

    What is told is sent together with the next pass, as one message more or less costs as much as all of it.

    Args:
        num_ranks: of the group, the leader included.
        command: the command line of a rank, given its number, the descriptor of its control socket, and the pid it is
            to end with, 0 for none.
        inherited: descriptors that the processes have too, under the same numbers.
    """

    def __init__(self, num_ranks: int, command: Command, inherited: Sequence[int] = ()) -> None:
        self._processes = [start(rank, command, inherited) for rank in range(1, num_ranks)]
        self._kept: list[bytes] = []
        self.close = weakref.finalize(self, end_all, self._processes)

    def wait_until_ready(self) -> None:
        """Return once all have said that their part is loaded.

        Raises:
            RankLostError: one has ended.
        """
        for follower in self._processes:
            follower.control.settimeout(None)
            if first_words(follower.control) != READY:
                raise RankLostError(self.blame() or f"rank {follower.rank} of the target cannot be made ready")
            follower.control.recv(len(READY))
            follower.control.settimeout(SEND_S)

    def watch(self, on_end: Callable[[], None]) -> None:
        """Call this, in a thread of its own, once any of them has ended or all are ended by `close`."""
        call_at_end([follower.control for follower in self._processes], on_end)

    def send(self, message: bytes) -> None:
        """Send this to every follower.

        Raises:
            RankLostError: one has gone.
        """
        try:
            for follower in self._processes:
                follower.control.sendall(message)
        except OSError as error:
            raise RankLostError(self.blame() or f"rank {follower.rank} takes no messages: {error}") from error

    @contextmanager
    def tell(self, told: Told) -> Iterator[None]:
        """Have all of them do what this process does within. Ctrl-C waits until it is done: done by some only, it
        would leave caches that differ."""
        with deferred_interrupts():
            self._kept.append(to_message(told))
            if isinstance(told, ForwardInput):
                self.send(b"".join(self._kept))
                self._kept.clear()
            yield

    def blame(self) -> str | None:
        """Which rank has ended and why; it ends the others, since none is of use without it."""
        deadline = monotonic() + LAST_WORDS_S
        while True:
            lost = next((follower for follower in self._processes if follower.process.poll() is not None), None)
            if lost is not None or monotonic() > deadline:
                break
            sleep(0.01)
        reason = self._late() if lost is None else last_words(lost)
        self.close()
        return reason

    def _late(self) -> str | None:
        """Which rank is stopped, where the system says so."""
        for follower in self._processes:
            if is_stopped(follower.process.pid):
                return f"rank {follower.rank} of the target (pid {follower.process.pid}) is stopped"
        return None


def call_at_end(ends: Sequence[socket.socket], on_end: Callable[[], None]) -> None:
    """Call this, in a thread of its own, once any of these sockets is closed at the other side, or shut down."""
    poller = select.poll()
    for end in ends:
        poller.register(end, 0)  # what is sent does not matter: only the end is reported

    def wait() -> None:
        poller.poll()
        on_end()

    threading.Thread(target=wait, name="ranks", daemon=True).start()


def start(rank: int, command: Command, inherited: Sequence[int]) -> FollowerProcess:
    ours, theirs = socket.socketpair()
    ours.settimeout(SEND_S)
    # Linux ties a child to the thread that made it; only the main thread is sure to last as long as the process.
    parent = os.getpid() if threading.current_thread() is threading.main_thread() else 0
    with theirs:
        process = subprocess.Popen(
            command(rank, theirs.fileno(), parent),
            pass_fds=[theirs.fileno(), *inherited],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the leader to act on
        )
    return FollowerProcess(rank=rank, process=process, control=ours)


def first_words(control: socket.socket) -> bytes:
    """What a follower says first; it stays there to be read."""
    try:
        return control.recv(len(READY), socket.MSG_PEEK)
    except ConnectionResetError:  # it ended before it had read what was sent
        return b""


def is_stopped(pid: int) -> bool:
    """True of a process that a signal has stopped, where the system reports it."""
    return process_state(pid)[0] in ("T", "t")


def last_words(lost: FollowerProcess) -> str:
    """What the process said of its end, else how it ended."""
    status = lost.process.poll()
    assert status is not None, f"rank {lost.rank} has not ended"
    how = f"signal {-status}" if status < 0 else f"status {status}"
    try:
        lost.control.setblocking(False)
        said = lost.control.recv(MAX_REASON_BYTES).decode(errors="replace")
    except OSError:
        said = ""
    return f"rank {lost.rank} of the target (pid {lost.process.pid}) ended with {how}{': ' if said else ''}{said}"


def end_all(processes: Sequence[FollowerProcess]) -> None:
    """Hang up, and see them off. No part of the object, so that it can run when that is gone."""
    for follower in processes:
        with suppress(OSError):  # it may be closed already
            follower.control.shutdown(socket.SHUT_RDWR)
    deadline = monotonic() + END_S
    for follower in processes:
        if is_stopped(follower.process.pid):
            follower.process.kill()
        try:
            follower.process.wait(max(0.0, deadline - monotonic()))
        except subprocess.TimeoutExpired:
            follower.process.kill()
            follower.process.wait()
        follower.control.close()
