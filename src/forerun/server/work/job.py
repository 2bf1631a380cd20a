"""One request on its way: what is to be written, what was written so far, and why it ended early."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from time import monotonic
from typing import Final, TypeAlias

from forerun.core.config import SamplingParams
from forerun.core.steps import DecodeStep, Generation
from forerun.server.protocol.errors import ApiError, stopping


class EarlyEnd(StrEnum):
    """Why a job was ended before its last token."""

    DISCONNECTED = "disconnected"
    SLOW_READER = "slow_reader"
    DEADLINE = "deadline"
    SHUTDOWN = "shutdown"


class Mark(Enum):
    """What a reader is told beside what was written: it is all, or nothing is new."""

    OVER = "over"
    PING = "ping"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One text to write; see `Engine.stream`.

    Args:
        times_plain: plain rounds are timed after the text, where the speed-up needs more of them and nobody waits.
    """

    prompt_ids: Sequence[int]
    params: SamplingParams
    drafter: str | None = None
    prediction: Sequence[int] = ()
    owner: str = ""
    times_plain: bool = False


Happening: TypeAlias = DecodeStep | Generation | ApiError | Mark
Event: TypeAlias = tuple[int, Happening]  # the number of the order, and what became of it

TOLD_EVERY_S: Final = (
    16e-3  # a frame of a screen. Told of each round of 4 ms, SmolLM2 lost 5 % of its speed on two cores
)
TOO_LATE: Final = "The request took longer than this server allows."


class Job:
    """Texts for one caller, written one after the other.

    The engine's thread calls `give` and looks at `early_end` before every pass of the target. All else belongs to the
    event loop's thread.

    Args:
        max_unread: events that may wait for the reader, beyond which the job ends; None: as many as there are.
        on_early_end: called once, in the loop's thread.
    """

    def __init__(
        self, orders: Sequence[Order], *, owner: str, max_unread: int | None, on_early_end: Callable[["Job"], None]
    ) -> None:
        self.orders, self.owner = orders, owner
        self.num_tokens = sum(len(order.prompt_ids) + (order.params.max_new_tokens or 0) for order in orders)
        self.early_end: EarlyEnd | None = None
        self.is_over = False
        self.error: ApiError | None = None
        self._loop = asyncio.get_running_loop()
        self.asked_s = self._loop.time()
        self.begun_s: float | None = None  # set by the engine's thread
        self._given: deque[Event] = deque()  # by the engine's thread, which told the loop last at `_told_s`
        self._told_s = 0.0
        self._unread: deque[Event] = deque()
        self._max_unread, self._on_early_end = max_unread, on_early_end
        self._waiter: asyncio.Future[None] | None = None
        self._when_done: list[Callable[[], None]] = []

    def when_done(self, call: Callable[[], None]) -> None:
        """Call this once nothing more will happen."""
        self._when_done.append(call)

    def give(self, index: int, happening: Happening) -> None:
        """Hand something to the reader; called by the engine's thread.

        Rounds that follow each other within TOLD_EVERY_S come together, the first one at once: what wakes the loop, and
        the client behind it, takes a core from the target's next pass.
        """
        self._given.append((index, happening))
        now_s = monotonic()
        if now_s - self._told_s >= TOLD_EVERY_S or not isinstance(happening, DecodeStep):
            self._told_s = now_s
            self._loop.call_soon_threadsafe(self._put_given)

    def _put_given(self) -> None:
        while self._given:
            self.put(*self._given.popleft())

    def put(self, index: int, happening: Happening) -> None:
        """The same within the loop's thread."""
        if self.is_over:
            return
        if isinstance(happening, ApiError):
            self.error = happening
        self.is_over = happening is Mark.OVER or self.error is not None
        self._unread.append((index, happening))
        if self.is_over:
            for call in self._when_done:
                call()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self._max_unread is not None and len(self._unread) > self._max_unread:
            self.end(EarlyEnd.SLOW_READER)

    def end(self, reason: EarlyEnd) -> None:
        """End it before its time; without effect on one that is over."""
        if self.is_over or self.early_end is not None:
            return
        self.early_end = reason
        self._on_early_end(self)
        match reason:
            case EarlyEnd.DEADLINE:
                self.put(0, ApiError(504, TOO_LATE, code="deadline_exceeded"))
            case EarlyEnd.SHUTDOWN:
                self.put(0, stopping())
            case _:
                self._unread.clear()
                self.put(0, Mark.OVER)

    @property
    def has_unread(self) -> bool:
        """True where `events` has more at once."""
        return len(self._unread) > 0

    async def events(self) -> AsyncIterator[Event]:
        """What happens, up to the end of all, which is not among it. An error is the last event."""
        while True:
            while not self._unread:
                self._waiter = self._loop.create_future()
                await self._waiter
            event = self._unread.popleft()
            if event[1] is Mark.OVER:
                return
            yield event
            if isinstance(event[1], ApiError):
                return
