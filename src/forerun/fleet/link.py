"""A front's view of one replica."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from forerun.fleet.relay import ReplicaLostError

if TYPE_CHECKING:  # imports Ray, which is loaded only after the server listens
    from forerun.fleet.cluster import RayReplica

Answer = TypeVar("Answer")

PATIENCE_S: Final = 5.0  # to wait for a report, which normally takes milliseconds


class Link:
    """A front's view of one replica."""

    def __init__(self, replica: "RayReplica") -> None:
        self.replica = replica
        self.is_ready = self.is_leaving = self.is_ended = False
        self.machine = ""
        self.failure: BaseException | None = None
        self.num_others = 0  # requests of other fronts
        self.lost: dict[object, Callable[[], None]] = {}  # a callback per open request, for when the replica is lost
        self.watch: asyncio.Task[None] | None = None

    @property
    def num_open(self) -> int:
        """Its open requests of all fronts."""
        return len(self.lost) + self.num_others

    def lose(self) -> None:
        """Send it no more requests, and end its open ones."""
        self.is_ready = False
        for tell in list(self.lost.values()):
            tell()

    def end(self) -> None:
        """Send it no more requests. It finishes the open ones."""
        self.is_ready = False
        self.is_ended = True
        if self.watch is not None:
            self.watch.cancel()


async def answered(answer: Awaitable[Answer], patience_s: float = PATIENCE_S) -> Answer | None:
    """A replica's answer; None if the replica is lost, or does not answer in time."""
    with suppress(ReplicaLostError, TimeoutError):
        async with asyncio.timeout(patience_s):
            return await answer
    return None
