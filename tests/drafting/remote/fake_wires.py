"""Wires between a target and its drafters: one thread, virtual time.

Wires carry the bytes of frames, and do to them whatever they are told to.
"""

import heapq
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from forerun.drafting.remote.frames import MAX_FAULTS
from forerun.drafting.remote.messages import Hello, Setup
from forerun.drafting.remote.state_machines import Grower
from forerun.drafting.remote.worker import LoadedDraft, WorkerSession
from forerun.sampling.noise import KeyedNoise

Spend = Callable[[float], object]  # lets virtual seconds pass
NEVER: Final = math.inf
MAX_STEPS: Final = 50_000  # of one worker: more means that virtual time stands still
FAULTS: Final[tuple[str, ...]] = ("drop", "delay", "duplicate", "reorder", "corrupt", "truncate", "split", "refuse")


class Clock:
    """Virtual seconds, the same for both ends."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Lane:
    """One direction of a wire: bytes with the times of their arrival.

    Args:
        rate: chance that something befalls a frame: one of `fates`. Both may be changed at any time.
        counts: what has befallen them.
    """

    def __init__(
        self, rng: random.Random, clock: Clock, *, latency_s: float, rate: float, counts: Counter[str]
    ) -> None:
        self._rng = rng
        self._clock = clock
        self._counts = counts
        self._latency_s = latency_s
        self.rate = rate
        self.fates = FAULTS
        self._queue: list[tuple[float, int, bytes]] = []
        self._serial = 0
        self._floor = 0.0

    @property
    def next_at(self) -> float:
        """When the next bytes arrive."""
        return self._queue[0][0] if self._queue else NEVER

    def put(self, frame: bytes) -> bool:
        at = max(self._floor, self._clock.now + self._latency_s)
        if self._rng.random() >= self.rate:
            self._push(at, frame)
            return True
        kind = self._rng.choice(self.fates)
        self._counts[kind] += 1
        self._befall(kind, frame, at)
        return kind != "refuse"

    def take(self) -> bytes:
        """What has arrived."""
        pieces = []
        while self._queue and self._queue[0][0] <= self._clock.now:
            pieces.append(heapq.heappop(self._queue)[2])
        return b"".join(pieces)

    def _push(self, at: float, data: bytes) -> None:
        self._serial += 1
        heapq.heappush(self._queue, (at, self._serial, data))

    def _befall(self, kind: str, frame: bytes, at: float) -> None:
        late = at + self._rng.choice((0.001, 0.01, 0.1)) * self._rng.random()
        place = self._rng.randrange(len(frame))
        match kind:
            case "delay":
                self._floor = late  # what follows has to queue up behind it
                self._push(late, frame)
            case "duplicate":
                self._push(at, frame)
                self._push(late, frame)
            case "reorder":
                self._push(late, frame)
            case "corrupt":
                self._push(at, frame[:place] + bytes([frame[place] ^ self._rng.randint(1, 255)]) + frame[place + 1 :])
            case "truncate":
                self._push(at, frame[:place])
            case "split":
                self._floor = late
                self._push(at, frame[:place])
                self._push(late, frame[place:])
            case _:
                pass  # dropped, or refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast a drafter and its wires are, in seconds, and how unsafe these."""

    expansion_s: float
    latency_s: float
    revival_s: float  # from the end of one worker to the next one's hello
    fault_rate: float


class FakeWorker:
    """What `worker.serve` does, one step at a time in virtual time."""

    def __init__(self, world: "World", pid: int) -> None:
        pace = world.pace
        self._world = world
        self._clock = world.clock
        self.inbox, self.outbox = (
            Lane(world.rng, world.clock, latency_s=pace.latency_s, rate=world.fault_rate, counts=world.counts)
            for _ in range(2)
        )
        self.is_open = True
        self.at = world.clock.now
        self._wakes_at = NEVER
        self._num_steps = 0
        draft = LoadedDraft(
            hello=Hello(pid=pid, vocab_size=world.vocab_size, max_length=1 << 20, vocabulary=bytes(32)),
            grower=lambda setup: world.make_grower(setup, self._spend),
            noise=KeyedNoise,
        )
        self._session = WorkerSession(draft, self.outbox.put, world.clock)

    @property
    def next_at(self) -> float:
        """When there is something to do."""
        return max(self.at, min(self._wakes_at, self.inbox.next_at)) if self.is_open else NEVER

    def step(self) -> None:
        """Take what has come, and do one thing; both may take time."""
        self._clock.now = self.next_at
        self._num_steps += 1
        assert self._num_steps < MAX_STEPS, "the drafter never comes to rest"
        self._session.receive(self.inbox.take())
        if self._session.num_faults > MAX_FAULTS:
            self._world.end_worker()
        else:
            rest_s = self._session.work()
            self._wakes_at = NEVER if rest_s is None else self._clock.now + rest_s
        self.at = self._clock.now

    def _spend(self, seconds: float) -> None:
        self._clock.now += seconds


class FakeWire:
    """The target's end of the wires to one worker."""

    def __init__(self, world: "World", worker: FakeWorker) -> None:
        self._world = world
        self._worker = worker

    @property
    def is_open(self) -> bool:
        return self._worker.is_open

    def send(self, data: bytes) -> bool:
        return self.is_open and self._worker.inbox.put(data)

    def receive(self) -> bytes:
        return self._worker.outbox.take()

    def wait(self, timeout_s: float | None) -> bool:
        assert timeout_s is not None, "the target never waits without end"
        if self.is_open:
            self._world.run(timeout_s, until_arrival=True)
        return not self.is_open or self._worker.outbox.next_at <= self._world.clock.now

    def close(self) -> None:
        if self._worker.is_open:
            self._world.end_worker()


class World:
    """Time, the worker of the moment, and the supply of new ones."""

    trouble = "it is made to fail"
    pid = None

    def __init__(
        self, rng: random.Random, pace: Pace, *, vocab_size: int,
        make_grower: Callable[[Setup, Spend], Grower],
    ) -> None:  # fmt: skip
        self.rng = rng
        self.pace = pace
        self.vocab_size = vocab_size
        self.make_grower = make_grower
        self.clock = Clock()
        self.counts = Counter[str]()
        self.fault_rate = pace.fault_rate
        self.worker: FakeWorker | None = None
        self.starves = False
        self._ready_at = self.clock.now
        self._num_workers = 0

    def run(self, seconds: float, *, until_arrival: bool = False) -> None:
        """Let time pass and the worker work, on request only until something reaches the target."""
        began = self.clock.now
        worker = self.worker
        end = began + seconds
        while worker is not None and worker.is_open:
            if until_arrival:
                end = min(end, worker.outbox.next_at)
            if worker.next_at > end:
                break
            worker.step()
            if until_arrival and not worker.is_open:
                end = worker.at  # hanging up is news
        self.clock.now = max(began, end)

    def end_worker(self) -> None:
        """The worker is gone; another one will come up."""
        if self.worker is not None:
            self.worker.is_open = False
        self._ready_at = self.clock.now + self.pace.revival_s

    def calm(self) -> None:
        """From now on nothing befalls a frame."""
        self.fault_rate = 0.0
        self.starves = False
        if self.worker is not None:
            self.worker.inbox.rate = self.worker.outbox.rate = 0.0

    def take(self) -> FakeWire | None:
        if (self.worker is not None and self.worker.is_open) or self.clock.now < self._ready_at:
            return None
        self._num_workers += 1
        self.worker = FakeWorker(self, pid=self._num_workers)
        return FakeWire(self, self.worker)

    def wait(self, timeout_s: float) -> FakeWire | None:
        self.run(min(timeout_s, max(0.0, self._ready_at - self.clock.now)))
        return self.take()

    def is_starved(self) -> bool:
        return self.starves

    def replace(self) -> None:
        self.counts["replaced"] += 1
        self.end_worker()

    def mark_healthy(self) -> None:
        self.counts["healthy"] += 1

    def close(self) -> None:
        self.end_worker()
