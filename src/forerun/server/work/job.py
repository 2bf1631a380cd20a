"""A job: the engine's calls for one request, its events so far, and why it ended early."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from time import monotonic
from typing import Final

from forerun.core.steps import DecodeStep, Generation, PrefillStep
from forerun.server.protocols.errors import ApiError, stopping
from forerun.server.work.engine_call import EngineCall


class EarlyEnd(StrEnum):
    """Why a job was ended before its last token."""

    DISCONNECTED = "disconnected"
    SLOW_READER = "slow_reader"
    DEADLINE = "deadline"
    SHUTDOWN = "shutdown"


class Mark(Enum):
    """Events without text: the job is over, or a ping."""

    OVER = "over"
    PING = "ping"


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """How much of a prompt is read, and the seconds that this took."""

    step: PrefillStep
    seconds: float


@dataclass(frozen=True, slots=True)
class Event:
    """What has happened to a job.

    Args:
        index: of one of its texts.
        body: progress of reading its prompt, a round of this text, its result, the error that ends the job, or a mark.
    """

    index: int
    body: ReadProgress | DecodeStep | Generation | ApiError | Mark


# One screen frame. Waking the loop in every round of 4 ms cost SmolLM2 5 % of its speed on two cores.
FLUSH_INTERVAL_S: Final = 16e-3
TOO_LATE: Final = "The request took longer than this server allows."


class Job:
    """Texts for one client, generated one after the other.

    The engine's thread calls `give`, sets `give_up`, and checks `early_end` before every pass of the target. Use
    everything else in the event loop's thread only.

    Args:
        label: what the client asked, for the log.
        is_admitted: the queue accepts it even if it is full, because it continues an answer that was begun elsewhere.
        max_unread: the job ends if more than this many events wait for the reader; None: no limit.

    Attributes:
        on_over: called once in the loop's thread when the job is over.
        give_up: ends the pass in progress.
    """

    def __init__(
        self,
        calls: Sequence[EngineCall],
        *,
        owner: str,
        max_unread: int | None,
        label: str = "",
        is_admitted: bool = False,
    ) -> None:
        self.calls = calls
        self.owner = owner
        self.label = label
        self.is_admitted = is_admitted
        self.num_tokens = sum(call.max_tokens for call in calls)
        self.early_end: EarlyEnd | None = None
        self.is_over = False
        self.on_over: Callable[[], None] | None = None
        self.give_up: Callable[[], None] = lambda: None
        self.error: ApiError | None = None
        self._loop = asyncio.get_running_loop()
        self.queued_s = self._loop.time()
        self.begun_s: float | None = None  # set by the engine's thread
        self._unflushed: deque[Event] = deque()  # from the engine's thread
        self._flushed_s = 0.0
        self._unread: deque[Event] = deque()
        self._max_unread = max_unread
        self._waiter: asyncio.Future[None] | None = None

    def give(self, event: Event) -> None:
        """Pass an event to the reader; called by the engine's thread.

        The first round is passed on at once, and rounds that follow within FLUSH_INTERVAL_S are batched: waking the
        event loop and the client takes CPU time from the target's next pass.
        """
        self._unflushed.append(event)
        now_s = monotonic()
        if now_s - self._flushed_s >= FLUSH_INTERVAL_S or not isinstance(event.body, DecodeStep):
            self._flushed_s = now_s
            self._loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        while self._unflushed:
            self.put(self._unflushed.popleft())

    def put(self, event: Event) -> None:
        """Pass an event to the reader; called in the loop's thread."""
        if self.is_over:
            return
        if isinstance(event.body, ApiError):
            self.error = event.body
        self.is_over = event.body is Mark.OVER or self.error is not None
        self._unread.append(event)
        if self.is_over and self.on_over is not None:
            self.on_over()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self._max_unread is not None and len(self._unread) > self._max_unread:
            self.end(EarlyEnd.SLOW_READER)

    def end(self, reason: EarlyEnd, error: ApiError | None = None) -> None:
        """End the job early; does nothing if it is over.

        Args:
            error: why the engine has ended; None: the server shuts down.
        """
        if self.is_over or self.early_end is not None:
            return
        self.early_end = reason
        self.give_up()
        match reason:
            case EarlyEnd.DEADLINE:
                self.put(Event(0, ApiError(504, TOO_LATE, code="deadline_exceeded")))
            case EarlyEnd.SHUTDOWN:
                self.put(Event(0, error or stopping()))
            case _:
                self._unread.clear()
                self.put(Event(0, Mark.OVER))

    @property
    def has_unread(self) -> bool:
        """True if `events` has another event without waiting."""
        return len(self._unread) > 0

    async def events(self) -> AsyncIterator[Event]:
        """The job's events until it is over. An error is the last event."""
        while True:
            while not self._unread:
                self._waiter = self._loop.create_future()
                await self._waiter
            event = self._unread.popleft()
            if event.body is Mark.OVER:
                return
            yield event
            if isinstance(event.body, ApiError):
                return
