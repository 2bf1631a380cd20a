"""A drafter's process and the wire to it in virtual time: one thread, one clock, no model.

Both ends are the engine's own: here they are given the wire and the clock of a simulation.
"""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final

from forerun.drafting.remote.messages import Hello, Setup
from forerun.drafting.remote.state_machines import Grower
from forerun.drafting.remote.worker import LoadedDraft, WorkerSession
from forerun.sampling.noise import KeyedNoise

WIRE_S: Final = 0.1e-3  # one way through a local socket, the waking of the other process included
HELLO: Final = Hello(pid=0, vocab_size=1, max_length=1 << 30, vocabulary=bytes(32))


class VirtualClock:
    """Seconds that pass only when they are spent."""

    def __init__(self) -> None:
        self.now = 1.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> float:
        """Let these seconds go by, and return them."""
        self.now += seconds
        return seconds


class Lane:
    """One direction of a wire: bytes and when they arrive."""

    def __init__(self, clock: VirtualClock, wire_s: float) -> None:
        self._clock, self._wire_s = clock, wire_s
        self._queue: deque[tuple[float, bytes]] = deque()

    @property
    def next_at(self) -> float:
        return self._queue[0][0] if self._queue else inf

    def put(self, data: bytes) -> bool:
        self._queue.append((self._clock.now + self._wire_s, data))
        return True

    def take(self) -> bytes:
        """What has arrived."""
        pieces = []
        while self._queue and self._queue[0][0] <= self._clock.now:
            pieces.append(self._queue.popleft()[1])
        return b"".join(pieces)


class VirtualWorker:
    """The drafter's process: takes what has come, does one thing, and sleeps when there is nothing to do."""

    def __init__(self, clock: VirtualClock, make_grower: Callable[[Setup], Grower], wire_s: float) -> None:
        self._clock = clock
        self.inbox, self.outbox = Lane(clock, wire_s), Lane(clock, wire_s)
        draft = LoadedDraft(hello=HELLO, grower=make_grower, noise=KeyedNoise)
        self._session = WorkerSession(draft, self.outbox.put, clock)
        self._free_at, self._wakes_at = clock.now, inf

    @property
    def next_at(self) -> float:
        """When it does its next thing."""
        return max(self._free_at, min(self._wakes_at, self.inbox.next_at))

    def step(self) -> None:
        """Do it; the clock stands where it ends."""
        self._clock.now = self.next_at
        self._session.receive(self.inbox.take())
        rest_s = self._session.work()
        self._free_at = self._clock.now
        self._wakes_at = inf if rest_s is None else self._free_at + rest_s


class VirtualWire:
    """The target's end of the wire."""

    is_open = True

    def __init__(self, supply: "VirtualSupply", worker: VirtualWorker) -> None:
        self._supply, self._worker = supply, worker

    def send(self, data: bytes) -> bool:
        return self._worker.inbox.put(data)

    def receive(self) -> bytes:
        return self._worker.outbox.take()

    def wait(self, timeout_s: float | None) -> bool:
        assert timeout_s is not None, "the target never waits without end"
        self._supply.run(timeout_s, until_arrival=True)
        return True

    def close(self) -> None:
        pass


class VirtualSupply:
    """The one worker, and time passing for both ends; what a `ParallelDrafter` takes as its supply.

    Args:
        wire_s: seconds that a message takes either way.
    """

    trouble = ""
    pid = None

    def __init__(self, clock: VirtualClock, make_grower: Callable[[Setup], Grower], *, wire_s: float = WIRE_S) -> None:
        self._clock, self._worker = clock, VirtualWorker(clock, make_grower, wire_s)
        self._is_taken = False

    def run(self, seconds: float, *, until_arrival: bool = False) -> None:
        """Let time pass and the worker work, on request only until something reaches the target."""
        began, worker = self._clock.now, self._worker
        end = began + seconds
        while True:
            if until_arrival:
                end = min(end, worker.outbox.next_at)
            if worker.next_at > end:
                break
            worker.step()
        self._clock.now = max(began, end)

    def take(self) -> VirtualWire | None:
        if self._is_taken:
            return None
        self._is_taken = True
        return VirtualWire(self, self._worker)

    def wait(self, timeout_s: float) -> VirtualWire | None:
        return self.take()

    def is_starved(self) -> bool:
        return True  # it is never to be taken for dead

    def replace(self) -> None:
        raise AssertionError("a simulated worker does not fail")

    def mark_healthy(self) -> None:
        pass

    def close(self) -> None:
        pass
