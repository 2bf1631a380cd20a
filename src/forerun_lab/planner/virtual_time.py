"""A drafter's process and the connection to it in virtual time: one thread, one clock, no model.

Both ends run the engine's own code, with a simulated connection and clock.
"""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final

from forerun.drafting.remote.messages import Hello, Setup
from forerun.drafting.remote.state_machines import Grower
from forerun.drafting.remote.worker import LoadedDraft, WorkerSession
from forerun.sampling.noise import KeyedNoise

WIRE_S: Final = 0.1e-3  # one way through a local socket, including the time to wake the other process
HELLO: Final = Hello(pid=0, vocab_size=1, max_length=1 << 30, vocabulary=bytes(32))


class VirtualClock:
    """A clock that advances only when time is spent."""

    def __init__(self) -> None:
        self.now = 1.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> float:
        """Advance the clock by these seconds, and return them."""
        self.now += seconds
        return seconds


class Lane:
    """One direction of a wire: bytes with their arrival times."""

    def __init__(self, clock: VirtualClock, wire_s: float) -> None:
        self._clock = clock
        self._wire_s = wire_s
        self._queue: deque[tuple[float, bytes]] = deque()

    @property
    def next_at(self) -> float:
        return self._queue[0][0] if self._queue else inf

    def put(self, data: bytes) -> bool:
        self._queue.append((self._clock.now + self._wire_s, data))
        return True

    def take(self) -> bytes:
        """The bytes that have arrived."""
        pieces = []
        while self._queue and self._queue[0][0] <= self._clock.now:
            pieces.append(self._queue.popleft()[1])
        return b"".join(pieces)


class VirtualWorker:
    """The drafter's process: receives messages, does one piece of work, and sleeps if there is none."""

    def __init__(self, clock: VirtualClock, make_grower: Callable[[Setup], Grower], wire_s: float) -> None:
        self._clock = clock
        self.inbox = Lane(clock, wire_s)
        self.outbox = Lane(clock, wire_s)
        draft = LoadedDraft(hello=HELLO, grower=make_grower, noise=KeyedNoise)
        self._session = WorkerSession(draft, self.outbox.put, clock)
        self._free_at = clock.now
        self._wakes_at = inf

    @property
    def next_at(self) -> float:
        """The time of its next piece of work."""
        return max(self._free_at, min(self._wakes_at, self.inbox.next_at))

    def step(self) -> None:
        """Do the next piece of work; the clock is then at its end."""
        self._clock.now = self.next_at
        self._session.receive(self.inbox.take())
        rest_s = self._session.work()
        self._free_at = self._clock.now
        self._wakes_at = inf if rest_s is None else self._free_at + rest_s


class VirtualWire:
    """The target's end of the wire."""

    is_open = True

    def __init__(self, supply: "VirtualSupply", worker: VirtualWorker) -> None:
        self._supply = supply
        self._worker = worker

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
    """The supply of a simulated `ParallelDrafter`: one worker, and the passing of time for both ends.

    Args:
        wire_s: seconds that a message takes in either direction.
    """

    trouble = ""
    pid = None

    def __init__(self, clock: VirtualClock, make_grower: Callable[[Setup], Grower], *, wire_s: float = WIRE_S) -> None:
        self._clock = clock
        self._worker = VirtualWorker(clock, make_grower, wire_s)
        self._is_taken = False

    def run(self, seconds: float, *, until_arrival: bool = False) -> None:
        """Advance time and let the worker work; with `until_arrival`, only until a message reaches the target."""
        began = self._clock.now
        worker = self._worker
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
        return True  # so that it is never considered dead

    def replace(self) -> None:
        raise AssertionError("a simulated worker does not fail")

    def mark_healthy(self) -> None:
        pass

    def close(self) -> None:
        pass
