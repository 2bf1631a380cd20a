"""The leader's side: the processes that share its model."""

import select
import socket
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Final, Literal, TypeAlias

from forerun.core.errors import RankLostError
from forerun.core.interrupts import deferred_interrupts
from forerun.model.executor import ForwardInput, Told
from forerun.sharding.messages import ANSWER, GAVE_UP, READY, Signal, to_frame
from forerun.wires.children import END_S, Child, Command, end_child, is_stopped, start_child

SEND_S: Final = 10.0  # a follower that has not read for this long counts as stopped
LAST_WORDS_S: Final = 0.5  # time until a process that has ended is reported as ended
ANSWER_S: Final = 1.0  # time for a rank of another host to answer a liveness check
MAX_REASON_BYTES: Final = 4000
HUNG_UP: Final = getattr(select, "POLLRDHUP", 0)  # reported by Linux if the other side has closed a TCP connection
SharedRole: TypeAlias = Literal["target", "draft"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProcess:
    """One follower.

    Args:
        place: its location, for messages.
        process: None for a rank of another host, which connected to its leader.
    """

    rank: int
    place: str
    control: socket.socket
    process: Child | None = None


class Followers:
    """All ranks but the leader, each in its own process.

    Messages are buffered and sent together with the next pass, because each separate send is expensive.

    Args:
        role: the model that they share, for messages.
    """

    def __init__(self, role: SharedRole) -> None:
        self._role = role
        self._processes: list[RankProcess] = []
        self._kept: list[bytes] = []
        self.close = weakref.finalize(self, end_all, self._processes)

    def start(self, rank: int, command: Command, inherited: Sequence[int] = ()) -> None:
        """Start a rank on this host.

        Args:
            command: makes its command line.
            inherited: descriptors that it inherits, with the same numbers.
        """
        process, control = start_child(command, inherited)
        control.settimeout(SEND_S)
        self._processes.append(RankProcess(rank=rank, place=f"pid {process.pid}", control=control, process=process))

    def admit(self, rank: int, control: socket.socket) -> None:
        """Add a rank of another host, which has connected and passed the handshake."""
        control.settimeout(SEND_S)
        control.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._processes.append(RankProcess(rank=rank, place=f"at {control.getpeername()[0]}", control=control))

    def own_address(self) -> str | None:
        """The address at which ranks of other hosts reach this process; None if there are no such ranks."""
        remote = next((follower for follower in self._processes if follower.process is None), None)
        return None if remote is None else str(remote.control.getsockname()[0])

    def tell_each(self, message: Callable[[int], bytes]) -> None:
        """Send every rank its own message.

        Raises:
            RankLostError: a rank was lost.
        """
        try:
            for follower in self._processes:
                follower.control.sendall(message(follower.rank))
        except OSError as error:
            raise RankLostError(self.blame() or self._say(follower, f"takes no messages: {error}")) from error

    def wait_until_ready(self) -> None:
        """Wait until all ranks have loaded their parts, then tell them to open the rank group.

        Raises:
            RankLostError: a rank has ended.
        """
        for follower in self._processes:
            follower.control.settimeout(None)
            if first_words(follower.control) != READY:
                raise RankLostError(self.blame() or self._say(follower, "cannot be made ready"))
            follower.control.recv(len(READY))
            follower.control.settimeout(SEND_S)
        self.tell_each(lambda _: to_frame(Signal.GO))

    def watch(self, on_end: Callable[[], None]) -> None:
        """Call `on_end`, in a separate thread, once any rank has ended or `close` has ended all."""
        call_at_end([follower.control for follower in self._processes], on_end)

    @contextmanager
    def tell(self, told: Told) -> Iterator[None]:
        """Make all ranks repeat what this process does inside the block. Ctrl-C is delayed to its end, because the
        caches would differ if only some ranks had done it."""
        with deferred_interrupts():
            self._kept.append(to_frame(told))
            if isinstance(told, ForwardInput):
                message = b"".join(self._kept)
                self.tell_each(lambda _: message)
                self._kept.clear()
            yield

    def blame(self) -> str | None:
        """The rank that has ended, and why; ends all other ranks, which are useless without it."""
        deadline = monotonic() + LAST_WORDS_S
        reason = self._fault()
        while reason is None and monotonic() < deadline:
            sleep(0.01)
            reason = self._fault()
        reason = reason or self._silence()
        self.close()
        return reason

    def _fault(self) -> str | None:
        """The rank that is stopped, if the system reports it, or that has ended, but not because of another one."""
        for follower in self._processes:
            if follower.process is not None and is_stopped(follower.process.pid):
                return self._say(follower, "is stopped")
        for follower in self._processes:
            if has_ended(follower) and (words := last_words(follower)) is not None:
                return self._say(follower, words)
        return None

    def _silence(self) -> str | None:
        """The rank of another host that does not answer."""
        for follower in self._processes:
            if follower.process is None and not has_ended(follower) and not is_there(follower.control):
                return self._say(follower, "is stopped, or out of reach")
        return None

    def _say(self, follower: RankProcess, what: str) -> str:
        return f"rank {follower.rank} of the {self._role} ({follower.place}) {what}"


def call_at_end(ends: Sequence[socket.socket], on_end: Callable[[], None]) -> None:
    """Call `on_end`, in a separate thread, once any of these sockets is closed by the other side, or shut down."""
    poller = select.poll()
    for end in ends:
        poller.register(end, HUNG_UP)  # report only the end, not received data

    def wait() -> None:
        poller.poll()
        on_end()

    threading.Thread(target=wait, name="ranks", daemon=True).start()


def first_words(control: socket.socket) -> bytes:
    """A follower's first message, which is left in the socket."""
    try:
        return control.recv(len(READY), socket.MSG_PEEK | socket.MSG_WAITALL)
    except OSError:  # it ended before it had read its messages, or is unreachable
        return b""


def has_ended(follower: RankProcess) -> bool:
    """Whether a local process has ended, or a remote one has hung up or is unreachable."""
    if follower.process is not None:
        return follower.process.poll() is not None
    poller = select.poll()
    poller.register(follower.control, HUNG_UP)
    return bool(poller.poll(0))


def is_there(control: socket.socket) -> bool:
    """Whether a rank of another host answers a liveness check."""
    try:
        control.settimeout(ANSWER_S)
        control.sendall(to_frame(Signal.QUESTION))
        return bool(control.recv(len(ANSWER)))
    except OSError:
        return False


def last_words(lost: RankProcess) -> str | None:
    """How a rank ended, and its last message; None if it gave up because another rank was lost."""
    how = "has gone" if lost.process is None else f"ended with {status_of(lost.process)}"
    try:
        lost.control.setblocking(False)
        said = lost.control.recv(MAX_REASON_BYTES, socket.MSG_PEEK).decode(errors="replace")
    except OSError as error:
        said = "" if lost.process is not None else str(error)
    if said == GAVE_UP.decode():
        return None
    return f"{how}{': ' if said else ''}{said}"


def status_of(process: Child) -> str:
    status = process.poll()
    assert status is not None, f"process {process.pid} has not ended"
    return f"signal {-status}" if status < 0 else f"status {status}"


def end_all(followers: Sequence[RankProcess]) -> None:
    """Hang up, and end the processes. It is not a method, so that it can run as a finalizer."""
    for follower in followers:
        with suppress(OSError):  # the socket may be closed already
            follower.control.shutdown(socket.SHUT_RDWR)
    deadline = monotonic() + END_S
    for follower in followers:
        if follower.process is not None:
            end_child(follower.process, deadline)
        follower.control.close()
