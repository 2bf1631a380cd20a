"""The target's connection to a drafter process, with health checks and replacement."""

import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

from forerun.drafting.remote.frames import KINDS, MAX_FAULTS, Wire
from forerun.drafting.remote.messages import Hello, Message, Proposal
from forerun.wires.frames import FrameReader

HelloCheck: TypeAlias = Callable[[Hello], str | None]  # why a worker is incompatible, or None
PROPOSALS_OF_A_HEALTHY_WORKER: Final = 10
# Chosen by hand, so that a busy machine is not mistaken for a hung process.
SILENCE_S: Final = 2.0  # a needed drafter that is silent for longer counts as hung; ten times the heartbeat interval
GAP_FACTOR: Final = 5.0  # after a longer gap that ended, silences up to this multiple of that gap are allowed,
MAX_SILENCE_S: Final = 10.0  # but none longer than this
MAX_UNHEARD_S: Final = 1.0  # if the target has not polled for longer, that time does not count as silence

logger = logging.getLogger(__name__)


class Liveness:
    """Detects a hanging drafter by how long it has been silent during requests that need it. Times are passed in."""

    def __init__(self) -> None:
        self._last_heard = self._last_listened = self._silent_s = self._longest_gap_s = 0.0

    def connect(self, now: float) -> None:
        """Note that another process has connected."""
        self._last_heard = self._last_listened = now
        self._silent_s = 0.0

    def start(self, now: float) -> None:
        """Note that the drafter is needed from now on; an earlier silence continues."""
        self._last_listened = now
        self._last_heard = now - self._silent_s

    def end(self, now: float) -> None:
        """Note that the drafter is no longer needed."""
        self._silent_s = now - self._last_heard

    def listen(self, now: float, *, has_spoken: bool) -> None:
        """Note that the target has polled for messages."""
        if now - self._last_listened > MAX_UNHEARD_S:
            self._last_heard += now - self._last_listened  # time without polling is not the drafter's silence
        self._last_listened = now
        if has_spoken:
            self._longest_gap_s = max(self._longest_gap_s, now - self._last_heard)
            self._last_heard = now

    def is_hung(self, now: float) -> bool:
        """True if a needed drafter has been silent for too long."""
        allowed_s = min(GAP_FACTOR * self._longest_gap_s, MAX_SILENCE_S)
        return now - self._last_heard > max(SILENCE_S, allowed_s)


class WorkerSupply(Protocol):
    """Gives connections to workers, one at a time. See `wires.worker_processes`."""

    @property
    def trouble(self) -> str:
        """Why there is no worker now; empty if there is no fault."""
        ...

    @property
    def pid(self) -> int | None:
        """Process id of the current worker, if it is on this machine."""
        ...

    def take(self) -> Wire | None:
        """A new connection, if there is one; never blocks."""
        ...

    def wait(self, timeout_s: float) -> Wire | None:
        """Wait for a new connection; None on timeout, or if there will be none."""
        ...

    def is_starved(self) -> bool:
        """True if the worker is runnable but gets no CPU time, so that its silence is not a fault."""
        ...

    def replace(self) -> None:
        """Kill the current worker, which is unusable, and start another one."""
        ...

    def mark_healthy(self) -> None:
        """Note that the current worker works, so that its later exit does not count as a failed start."""
        ...

    def close(self) -> None:
        """Stop the worker and free all resources."""
        ...


class Connection:
    """A connection to one worker at a time. A worker that hangs, sends garbage or is incompatible is disconnected.

    Args:
        check: returns the reason why a worker's hello is incompatible, or None.
        clock: returns seconds.
    """

    def __init__(self, supply: WorkerSupply, check: HelloCheck, clock: Callable[[], float]) -> None:
        self.supply = supply
        self._check = check
        self._clock = clock
        self.is_ready = False  # a worker is connected and compatible
        self.fault: str | None = None  # why the last worker was rejected
        self._lost_because = ""  # why the target disconnected a worker that was ready
        self._liveness = Liveness()
        self._wire: Wire | None = None

    @property
    def trouble(self) -> str:
        """Why no worker is ready."""
        return self._lost_because or self.supply.trouble or "its process has ended"

    def start_request(self) -> None:
        """Note the start of a request."""
        self._liveness.start(self._clock())

    def end(self) -> None:
        """Note the end of the request."""
        self._liveness.end(self._clock())

    def send(self, messages: Sequence[Message]) -> None:
        if self._wire is not None:
            for message in messages:
                self._wire.send(KINDS.to_frame(message))

    def wait(self, timeout_s: float) -> bool:
        """Wait for the next message, or for a worker if there is none; False on timeout."""
        if self._wire is None:
            self._attach(self.supply.wait(timeout_s))
        if self._wire is None:
            return False
        self._wire.wait(timeout_s)
        return True

    def receive(self, *, is_wanted: bool) -> list[Message]:
        """The messages received. A worker that hangs or sends garbage is replaced.

        Args:
            is_wanted: a request is running, so a silent worker counts as hung.
        """
        now = self._clock()
        if self._wire is None or not self._wire.is_open:
            self._attach(self.supply.take())
            if self._wire is None:
                return []
        messages = self._reader.feed(self._wire.receive())
        self._liveness.listen(now, has_spoken=bool(messages))
        for message in messages:
            self._told(message)
        if is_wanted and self._liveness.is_hung(now) and not self.supply.is_starved():
            self._replace("hangs")
        elif self._reader.num_faults > MAX_FAULTS:
            self._replace("sends garbage")
        return messages

    def close(self) -> None:
        self._detach()
        self.supply.close()

    def _told(self, message: Message) -> None:
        match message:
            case Hello() if self._wire is not None:
                self._greet(message)
            case Proposal():
                self._num_proposals += 1
                if self._num_proposals == PROPOSALS_OF_A_HEALTHY_WORKER:
                    self.supply.mark_healthy()
            case _:
                pass

    def _greet(self, hello: Hello) -> None:
        self.fault = self._check(hello)
        if self.fault is None:
            self.is_ready = True
            self._lost_because = ""
        else:
            logger.error("the drafter cannot be used: %s", self.fault)
            self._detach()

    def _replace(self, misdeed: str) -> None:
        self._lost_because = f"the drafter {misdeed}, and is being replaced"
        self._detach()
        self.supply.replace()

    def _attach(self, wire: Wire | None) -> None:
        self._detach()
        if wire is not None:
            self._wire = wire
            self._reader = FrameReader(KINDS)
            self._num_proposals = 0
            self._liveness.connect(self._clock())

    def _detach(self) -> None:
        if self._wire is not None:
            self._wire.close()
        self._wire = None
        self.is_ready = False
