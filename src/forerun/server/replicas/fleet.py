"""The replicas: starting, monitoring and choosing one per request."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, TypeVar

from forerun.server.config import ServerConfig
from forerun.server.protocols.errors import loading
from forerun.server.replicas.homes import Homes
from forerun.server.replicas.relay import NoReplicaError, ReplicaLostError
from forerun.server.replicas.replica import ReplicaReport
from forerun.server.work.engine_thread import MakeEngine

if TYPE_CHECKING:  # imports Ray, which is loaded only after the server listens
    from forerun.server.replicas.cluster import RayReplica

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")

ASK_EVERY_S: Final = 1.0
PATIENCE_S: Final = 5.0  # to wait for a report, which normally takes milliseconds
SIGNALS_EVERY_S: Final = 0.05
HIDDEN_KEY: Final = "known to the front process only"  # replicas only need to know that there is a key


class Link:
    """One replica as seen from the front process."""

    def __init__(self, replica: "RayReplica") -> None:
        self.replica = replica
        self.is_ready = False
        self.lost: dict[object, Callable[[], None]] = {}  # a callback per open request, for when the replica is lost

    def lose(self) -> None:
        """Send it no more requests, and end its open ones."""
        self.is_ready = False
        for tell in list(self.lost.values()):
            tell()


class Fleet:
    """All replicas of a server. Use it in the event loop's thread only.

    Args:
        uses_gpus: the engines may run on GPUs, which the replicas share.
        keep_signals: installs our signal handlers again, since starting Ray replaces them and its SIGTERM handler
            aborts the process.
        on_ready: called when the first replica is ready.
        on_end: called with the error if no replica can be opened.
    """

    def __init__(
        self,
        config: ServerConfig,
        make_engine: MakeEngine,
        *,
        target: str,
        drafter_name: str,
        uses_gpus: bool,
        keep_signals: Callable[[], None],
        on_ready: Callable[[], None],
        on_end: Callable[[BaseException], None],
    ) -> None:
        self.config = config
        hidden = replace(config, api_keys=(HIDDEN_KEY,) if config.api_keys else ())
        self._about = {"config": hidden, "make_engine": make_engine, "target": target, "drafter_name": drafter_name}
        self._keep_signals, self._uses_gpus, self._on_ready, self._on_end = keep_signals, uses_gpus, on_ready, on_end
        self._homes, self._links, self._tasks = Homes(), dict[int, Link](), list[asyncio.Task[None]]()
        self._folder = TemporaryDirectory(prefix="forerun-", ignore_cleanup_errors=True)
        self.is_over = False

    def begin(self) -> None:
        """Start the replicas."""
        self._tasks.append(asyncio.create_task(self._start()))

    async def end(self) -> None:
        """Stop the replicas and Ray, and remove its folder."""
        for task in self._tasks[1:]:
            task.cancel()
        await self._tasks[0]  # Ray cannot be interrupted while it starts
        await answered(asyncio.gather(*(link.replica.end() for link in self._links.values() if link.is_ready)))
        await asyncio.to_thread(self._stop)
        self._folder.cleanup()

    @property
    def num_ready(self) -> int:
        return sum(link.is_ready for link in self._links.values())

    @contextmanager
    def visit(self, session: str, *, on_lost: Callable[[], None]) -> Iterator[Link]:
        """The replica that answers this conversation. Within the block the request counts as open on that replica.

        Args:
            on_lost: called if the replica is lost.

        Raises:
            ApiError: no replica is ready.
        """
        num_open = {index: len(link.lost) for index, link in self._links.items() if link.is_ready}
        if not num_open:
            raise loading()
        link, visitor = self._links[self._homes.choose(session, num_open)], object()
        link.lost[visitor] = on_lost
        try:
            yield link
        finally:
            del link.lost[visitor]

    async def pages(self) -> Mapping[int, str | None]:
        """The metrics page of every replica; None for one that does not answer."""

        async def page(link: Link) -> str | None:
            return await answered(link.replica.metrics()) if link.is_ready else None

        links = dict(self._links)
        return dict(zip(links, await asyncio.gather(*map(page, links.values())), strict=True))

    async def _start(self) -> None:
        starting = asyncio.create_task(asyncio.to_thread(self._start_cluster))
        while not starting.done():
            await asyncio.wait([starting], timeout=SIGNALS_EVERY_S)
            self._keep_signals()
        error = starting.exception()
        if error is not None:
            self._fail(error)
            return
        for index, replica in enumerate(starting.result()):
            self._links[index] = Link(replica)
            self._tasks.append(asyncio.create_task(self._watch(index, self._links[index])))

    def _start_cluster(self) -> "Sequence[RayReplica]":
        """Start Ray and the replicas. This takes seconds, so it runs in its own thread."""
        from forerun.server.replicas.cluster import start_cluster

        return start_cluster(
            self._about,
            num_replicas=self.config.num_replicas,
            uses_gpus=self._uses_gpus,
            folder=self._folder.name,
        )

    def _stop(self) -> None:
        from forerun.server.replicas.cluster import stop_cluster

        stop_cluster()

    async def _watch(self, index: int, link: Link) -> None:
        """Poll a replica's state."""
        try:
            while True:
                self._note(index, link, await answered(link.replica.report()))
                await asyncio.sleep(ASK_EVERY_S)
        except NoReplicaError as error:
            link.lose()
            self._fail(error)

    def _note(self, index: int, link: Link, report: ReplicaReport | None) -> None:
        """Process a replica's report; None if it did not answer."""
        if report is not None and report.failure is not None:
            self._fail(report.failure)
        is_ready, is_first = report is not None and report.is_ready, self.num_ready == 0
        if link.is_ready and not is_ready:
            logger.warning("replica %d does not answer and is restarted", index)
            link.lose()
        if is_ready and not link.is_ready:
            logger.info("replica %d is ready", index)
            link.is_ready = True
            if is_first:
                self._on_ready()

    def _fail(self, error: BaseException) -> None:
        """A replica could not be opened. While no replica is ready, this ends the server."""
        if self.num_ready > 0:
            logger.error("a replica could not be opened: %s", error)
        elif not self.is_over:
            self.is_over = True
            self._on_end(error)


async def answered(answer: Awaitable[Answer]) -> Answer | None:
    """A replica's answer; None if the replica is lost, or does not answer in time."""
    with suppress(ReplicaLostError, TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            return await answer
    return None
