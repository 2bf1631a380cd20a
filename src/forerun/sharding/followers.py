"""A leader's side of the processes that share its model."""

import os
import select
import socket
import subprocess
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Final, Literal, TypeAlias

from forerun.core.errors import RankLostError
from forerun.model.inputs import ForwardInput
from forerun.model.step import Told
from forerun.runtime.interrupts import deferred_interrupts
from forerun.sharding.messages import ANSWER, GAVE_UP, GO, QUESTION, READY, to_message
from forerun.wires.starvation import process_state

SEND_S: Final = 10.0  # a follower that has not read for so long counts as stopped
LAST_WORDS_S: Final = 0.5  # for a process that has ended to be seen as ended
END_S: Final = 2.0  # for followers to end by themselves before they are killed
ANSWER_S: Final = 1.0  # for a rank of another host to say that it is there
MAX_REASON_BYTES: Final = 4000
HUNG_UP: Final = getattr(select, "POLLRDHUP", 0)  # of TCP, whose other side has closed; Linux tells
Command: TypeAlias = Callable[[int, int], Sequence[str]]
SharedRole: TypeAlias = Literal["target", "draft"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProcess:
    """One follower.

    Args:
        place: where it is, for messages.
        process: None for one of another host, which came to its leader.
    """

    rank: int
    place: str
    control: socket.socket
    process: "subprocess.Popen[bytes] | None" = field(default=None)


class Followers:
    """All ranks but the leader's, each in a process of its own.

    What is told is sent together with the next pass, as one message more or less costs as much as all of it.

    Args:
        role: what they share, for messages.
    """

    def __init__(self, role: SharedRole) -> None:
        self._role = role
        self._processes: list[RankProcess] = []
        self._kept: list[bytes] = []
        self.close = weakref.finalize(self, end_all, self._processes)

    def start(self, rank: int, command: Command, inherited: Sequence[int] = ()) -> None:
        """Start a rank on this host.

        Args:
            command: its command line, given the descriptor of its control socket and the pid it is to end with, 0 for
                none.
            inherited: descriptors that it has too, under the same numbers.
        """
        self._processes.append(start(rank, command, inherited))

    def admit(self, rank: int, control: socket.socket) -> None:
        """A rank of another host, which has come and shown who it is."""
        control.settimeout(SEND_S)
        control.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._processes.append(RankProcess(rank=rank, place=f"at {control.getpeername()[0]}", control=control))

    def own_address(self) -> str | None:
        """That of the interface by which ranks of other hosts reach this process; None where there are none."""
        remote = next((follower for follower in self._processes if follower.process is None), None)
        return None if remote is None else str(remote.control.getsockname()[0])

    def tell_each(self, message: Callable[[int], bytes]) -> None:
        """Send every rank what is for it.

        Raises:
            RankLostError: one has gone.
        """
        try:
            for follower in self._processes:
                follower.control.sendall(message(follower.rank))
        except OSError as error:
            raise RankLostError(self.blame() or self._say(follower, f"takes no messages: {error}")) from error

    def wait_until_ready(self) -> None:
        """Return once all have said that their part is loaded, and have been told to meet.

        Raises:
            RankLostError: one has ended.
        """
        for follower in self._processes:
            follower.control.settimeout(None)
            if first_words(follower.control) != READY:
                raise RankLostError(self.blame() or self._say(follower, "cannot be made ready"))
            follower.control.recv(len(READY))
            follower.control.settimeout(SEND_S)
        self.tell_each(lambda _: GO)

    def watch(self, on_end: Callable[[], None]) -> None:
        """Call this, in a thread of its own, once any of them has ended or all are ended by `close`."""
        call_at_end([follower.control for follower in self._processes], on_end)

    @contextmanager
    def tell(self, told: Told) -> Iterator[None]:
        """Have all of them do what this process does within. Ctrl-C waits until it is done: done by some only, it
        would leave caches that differ."""
        with deferred_interrupts():
            self._kept.append(to_message(told))
            if isinstance(told, ForwardInput):
                message = b"".join(self._kept)
                self.tell_each(lambda _: message)
                self._kept.clear()
            yield

    def blame(self) -> str | None:
        """Which rank has ended and why; it ends the others, since none is of use without it."""
        deadline, reason = monotonic() + LAST_WORDS_S, self._fault()
        while reason is None and monotonic() < deadline:
            sleep(0.01)
            reason = self._fault()
        reason = reason or self._silence()
        self.close()
        return reason

    def _fault(self) -> str | None:
        """Which rank is stopped, where the system says so, or has ended and not because of another one."""
        for follower in self._processes:
            if follower.process is not None and is_stopped(follower.process.pid):
                return self._say(follower, "is stopped")
        for follower in self._processes:
            if has_ended(follower) and (words := last_words(follower)) is not None:
                return self._say(follower, words)
        return None

    def _silence(self) -> str | None:
        """Which rank of another host does not answer."""
        for follower in self._processes:
            if follower.process is None and not has_ended(follower) and not is_there(follower.control):
                return self._say(follower, "is stopped, or out of reach")
        return None

    def _say(self, follower: RankProcess, what: str) -> str:
        return f"rank {follower.rank} of the {self._role} ({follower.place}) {what}"


def call_at_end(ends: Sequence[socket.socket], on_end: Callable[[], None]) -> None:
    """Call this, in a thread of its own, once any of these sockets is closed at the other side, or shut down."""
    poller = select.poll()
    for end in ends:
        poller.register(end, HUNG_UP)  # what is sent does not matter: only the end is reported

    def wait() -> None:
        poller.poll()
        on_end()

    threading.Thread(target=wait, name="ranks", daemon=True).start()


def start(rank: int, command: Command, inherited: Sequence[int]) -> RankProcess:
    ours, theirs = socket.socketpair()
    ours.settimeout(SEND_S)
    # Linux ties a child to the thread that made it; only the main thread is sure to last as long as the process.
    parent = os.getpid() if threading.current_thread() is threading.main_thread() else 0
    with theirs:
        process = subprocess.Popen(
            command(theirs.fileno(), parent),
            pass_fds=[theirs.fileno(), *inherited],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the leader to act on
        )
    return RankProcess(rank=rank, place=f"pid {process.pid}", control=ours, process=process)


def first_words(control: socket.socket) -> bytes:
    """What a follower says first; it stays there to be read."""
    try:
        return control.recv(len(READY), socket.MSG_PEEK | socket.MSG_WAITALL)
    except OSError:  # it ended before it had read what was sent, or cannot be reached any more
        return b""


def has_ended(follower: RankProcess) -> bool:
    """True of a process that has ended, or of one elsewhere that has hung up or cannot be reached any more."""
    if follower.process is not None:
        return follower.process.poll() is not None
    poller = select.poll()
    poller.register(follower.control, HUNG_UP)
    return bool(poller.poll(0))


def is_there(control: socket.socket) -> bool:
    """True of a rank of another host that answers."""
    try:
        control.settimeout(ANSWER_S)
        control.sendall(QUESTION)
        return bool(control.recv(len(ANSWER)))
    except OSError:
        return False


def is_stopped(pid: int) -> bool:
    """True of a process that a signal has stopped, where the system reports it."""
    return process_state(pid)[0] in ("T", "t")


def last_words(lost: RankProcess) -> str | None:
    """How it ended, and what it said of its end; None of one that gave up since another one was lost."""
    how = "has gone" if lost.process is None else f"ended with {status_of(lost.process)}"
    try:
        lost.control.setblocking(False)
        said = lost.control.recv(MAX_REASON_BYTES, socket.MSG_PEEK).decode(errors="replace")
    except OSError as error:
        said = "" if lost.process is not None else str(error)
    if said == GAVE_UP.decode():
        return None
    return f"{how}{': ' if said else ''}{said}"


def status_of(process: "subprocess.Popen[bytes]") -> str:
    status = process.poll()
    assert status is not None, f"process {process.pid} has not ended"
    return f"signal {-status}" if status < 0 else f"status {status}"


def end_all(followers: Sequence[RankProcess]) -> None:
    """Hang up, and see them off. No part of the object, so that it can run when that is gone."""
    for follower in followers:
        with suppress(OSError):  # it may be closed already
            follower.control.shutdown(socket.SHUT_RDWR)
    deadline = monotonic() + END_S
    for follower in followers:
        if follower.process is not None:
            see_off(follower.process, deadline)
        follower.control.close()


def see_off(process: "subprocess.Popen[bytes]", deadline: float) -> None:
    """Wait for its end until the clock passes `deadline`, then kill it."""
    if is_stopped(process.pid):
        process.kill()
    try:
        process.wait(max(0.0, deadline - monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
