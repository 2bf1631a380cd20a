"""A front's view of the replicas: it starts, finds and monitors them, and chooses one per request."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from tempfile import TemporaryDirectory
from time import sleep
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import uuid4

import forerun
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError
from forerun.fleet.config import FleetConfig
from forerun.fleet.head_node import watch_head
from forerun.fleet.homes import Homes
from forerun.fleet.relay import NoReplicaError, ReplicaLostError
from forerun.fleet.replica import OpenEngine, ReplicaReport, about_replicas
from forerun.fleet.scaling import Scaling
from forerun.server.protocols.errors import loading
from forerun.wires.children import end_all_that_name

if TYPE_CHECKING:  # imports Ray, which is loaded only after the server listens
    from forerun.fleet.cluster import Cluster, FoundReplica, RayReplica

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Answer = TypeVar("Answer")

ASK_EVERY_S: Final = 1.0
PATIENCE_S: Final = 5.0  # to wait for a report, which normally takes milliseconds
END_S: Final = 2.0  # for the replicas to close their engines
LEAVE_S: Final = 3.0  # for all that ends a front


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


class Fleet:
    """All replicas of a server. Use it in the event loop's thread only.

    Ray is called in one thread, one call after the other: a call that came after the last one would start Ray again.

    Args:
        open_engine: opens the engine in a replica's process.
    """

    def __init__(
        self, config: FleetConfig, open_engine: OpenEngine, engine_config: EngineConfig, *, drafter_name: str
    ) -> None:
        self.config = config
        self._engine_config = engine_config
        self._about = about_replicas(config.server, open_engine, engine_config, drafter_name=drafter_name)
        self.front = uuid4().hex  # its name for the replicas
        self._homes = Homes(are_shared=config.ray_address is not None)
        self._links = dict[int, Link]()
        self._tasks = list[asyncio.Task[None]]()
        self._folder = TemporaryDirectory(prefix="forerun-", ignore_cleanup_errors=True)
        self._ray = ThreadPoolExecutor(1, thread_name_prefix="ray")
        self._cluster: Cluster | None = None
        self.is_over = self.is_stuck = self._is_ending = False
        self._head = ""  # address of Ray's head node

    def start(
        self,
        *,
        keep_signals: Callable[[], None],
        on_ready: Callable[[], None],
        on_end: Callable[[BaseException], None],
    ) -> None:
        """Start the replicas, or find those that run.

        Args:
            keep_signals: installs our signal handlers again, should Ray have replaced them.
            on_ready: called when the first replica is ready.
            on_end: called with the error if no replica can be opened.
        """
        self._keep_signals = keep_signals
        self._on_ready = on_ready
        self._on_end = on_end
        self._tasks.append(asyncio.create_task(self._start()))

    async def end(self) -> None:
        """Stop the replicas, unless other fronts use them, and leave Ray, in LEAVE_S at most.

        If Ray takes longer, `is_stuck` is set: its thread cannot be interrupted, so end the process, after `clear`.
        """
        starting = self._tasks[0]
        self._is_ending = True
        if not starting.done():
            if self.config.ray_address is None:
                self.is_stuck = True
                return
            logger.info("waiting for the Ray cluster, since a start cannot be interrupted")
        await starting
        for task in self._tasks[1:]:
            task.cancel()
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._end_replicas()
                await self._call(self._leave)
        except TimeoutError:
            self.is_stuck = True
        else:
            self.clear()

    async def _end_replicas(self) -> None:
        shared = None if self.config.ray_address is None else self._cluster
        if shared is not None:
            with suppress(ReplicaLostError):
                self._know(await self._call(shared.find))
        ready = [link.replica for link in self._links.values() if link.is_ready]
        for link in self._links.values():
            link.end()
        asked = [link.replica for link in self._links.values()] if shared is not None else []
        num_others = await asyncio.gather(*(answered(replica.leave(self.front), END_S) for replica in asked))
        if not self.config.is_front and not any(num_others):
            await answered(asyncio.gather(*(replica.end() for replica in ready)), END_S)
            if shared is not None:
                await self._call(shared.stop, list(self._links))

    def clear(self) -> None:
        """Remove what Ray has on this machine if it was started for this server: its processes and its folder."""
        for _ in range(5 if self.is_stuck else 1):  # a thread that starts Ray may go on for a moment
            end_all_that_name(self._folder.name)
            self._folder.cleanup()
            sleep(0.03 if self.is_stuck else 0.0)

    async def _call(self, work: Callable[..., Result], *given: object) -> Result:
        """Call Ray, which blocks, in its thread."""
        return await asyncio.get_running_loop().run_in_executor(self._ray, work, *given)

    @property
    def num_ready(self) -> int:
        return sum(link.is_ready for link in self._links.values())

    @property
    def num_replicas(self) -> int:
        """How many replicas run or should run."""
        return len(self._links) if self.config.is_front else max(len(self._links), self.config.num_replicas)

    @contextmanager
    def visit(self, session: str, *, on_lost: Callable[[], None], but: Link | None = None) -> Iterator[Link]:
        """The replica that answers this conversation. Within the block the request counts as open on that replica.

        Args:
            on_lost: called if the replica is lost.
            but: the replica that was lost last; perhaps its whole machine is lost.

        Raises:
            ApiError: no replica is ready.
        """
        ready = {index: link for index, link in self._links.items() if link.is_ready}
        if not ready:
            raise loading()
        others = {index: link for index, link in ready.items() if link is not but}
        if but is not None and (elsewhere := {i: link for i, link in others.items() if link.machine != but.machine}):
            others = elsewhere
        others = others or ready
        staying = {index: link for index, link in others.items() if not link.is_leaving} or others
        num_open = {index: link.num_open for index, link in staying.items()}
        link = self._links[self._homes.choose(session, num_open)]
        visitor = object()
        link.lost[visitor] = on_lost
        try:
            yield link
        finally:
            del link.lost[visitor]

    async def some_ready(self) -> None:
        """Wait until a replica is ready, at most as long as a request may take."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.config.server.max_request_s):
                while not self.num_ready:
                    await asyncio.sleep(ASK_EVERY_S / 4)

    async def pages(self) -> Mapping[tuple[str, ...], str | None]:
        """The metrics page of every replica, by its index and machine; None for one that does not answer."""

        async def page(link: Link) -> str | None:
            return await answered(link.replica.metrics()) if link.is_ready else None

        places = {(str(index), link.machine): link for index, link in self._links.items()}
        return dict(zip(places, await asyncio.gather(*map(page, places.values())), strict=True))

    async def _start(self) -> None:
        try:
            self._cluster = await self._call(self._join)
        except Exception as error:  # noqa: BLE001 - it ends the server, which raises it
            self._fail(error)
            return
        self._keep_signals()
        if not self._is_ending:
            self._tasks.append(asyncio.create_task(self._look(self._cluster)))
        if not self._is_ending and self._head:
            self._tasks.append(asyncio.create_task(watch_head(self._head, on_end=self._on_end)))

    def _join(self) -> "Cluster":
        """Start or join Ray, and start the replicas unless the server ends already. This takes seconds."""
        from forerun.fleet.cluster import Cluster, head_address, open_ray

        open_ray(self.config.ray_address, folder=self._folder.name)
        self._head = head_address()
        cluster = Cluster(self.config, self._engine_config, self._about)
        if not (self.config.is_front or self._is_ending):
            cluster.start(range(self.config.num_replicas))
        return cluster

    def _leave(self) -> None:
        from forerun.fleet.cluster import close_ray

        close_ray()

    async def _look(self, cluster: "Cluster") -> None:
        """Keep the list of replicas up to date, and start or end some as needed."""
        scaling = Scaling(self.config.num_replicas, self.config.max_replicas)
        while True:
            with suppress(ReplicaLostError):  # Ray Serve's own process is restarted
                self._know(await self._call(cluster.find))
                if not self.config.is_front:
                    await self._scale(cluster, scaling)
            await asyncio.sleep(ASK_EVERY_S)

    async def _scale(self, cluster: "Cluster", scaling: Scaling) -> None:
        """Start or end a replica if more or fewer are needed."""
        staying = {index: link for index, link in self._links.items() if not link.is_ended}
        num_open = {index: link.num_open for index, link in staying.items() if link.is_ready}
        wanted = scaling.wanted(num_open, num_all=len(staying))
        if wanted > len(staying):
            index = next(index for index in range(wanted) if index not in staying)
            logger.info("requests are waiting: starting replica %d", index)
            await self._call(cluster.add, index)
        if wanted < len(staying):
            logger.info("ending replica %d, which is not needed", last := max(staying))
            staying[last].end()  # Ray would never deliver requests that are sent to it from now on
            await self._call(cluster.stop, [last])

    def _know(self, found: Mapping[int, "FoundReplica"]) -> None:
        """Update the list of replicas."""
        for index in [index for index in self._links if index not in found]:
            link = self._links.pop(index)
            link.end()
            link.lose()
        for index, item in found.items():
            if index not in self._links or (self._links[index].is_ended and not item.is_ending):
                link = self._links[index] = Link(item.replica)
                link.watch = asyncio.create_task(self._watch(index, link))
            link = self._links[index]
            link.is_leaving = item.is_leaving
            if item.is_ending:
                link.end()

    async def _watch(self, index: int, link: Link) -> None:
        """Poll a replica's state."""
        try:
            while True:
                self._told(index, link, await answered(link.replica.report(self.front, forerun.__version__)))
                await asyncio.sleep(ASK_EVERY_S)
        except NoReplicaError as error:
            link.lose()
            link.failure = error
            self._fail(error)

    def _told(self, index: int, link: Link, report: ReplicaReport | None) -> None:
        """Process a replica's report; None if it did not answer."""
        failure = None if report is None else report.failure or self._other_model(report)
        is_ready = report is not None and report.is_ready and failure is None
        is_first = self.num_ready == 0
        if link.is_ready and not is_ready:
            logger.warning("replica %d%s does not answer and is restarted", index, self._place(link))
            link.lose()
        if report is not None:
            link.machine = report.machine
            link.num_others = report.num_others
        if failure is not None:
            is_new = str(failure) != str(link.failure)
            link.failure = failure
            if is_new:
                self._fail(failure)
        if is_ready and not link.is_ready:
            logger.info("replica %d%s is ready", index, self._place(link))
            link.is_ready = True
            link.failure = None
            if is_first:
                self._on_ready()

    def _other_model(self, report: ReplicaReport) -> ConfigError | None:
        """The error if a replica has another model, since fronts find replicas by a short name that two may share."""
        own = self._engine_config.target
        if report.target == own:
            return None
        return ConfigError(
            f"a replica on {report.machine} runs {report.target}, but this front was started for {own}: give "
            "both the same model, or one of them another --served-model-name"
        )

    def name_of(self, link: Link) -> str:
        """A replica's name, for the log."""
        index = next((index for index, each in self._links.items() if each is link), None)
        return "a replica that is gone" if index is None else f"replica {index}{self._place(link)}"

    def _place(self, link: Link) -> str:
        return "" if self.config.ray_address is None else f" on {link.machine}"

    def _fail(self, error: BaseException) -> None:
        """A replica could not be opened. If all could not, this ends the server."""
        if any(link.failure is None for link in self._links.values()):
            logger.error("a replica could not be opened: %s", error)
        elif not self.is_over:
            self.is_over = True
            self._on_end(error)


async def answered(answer: Awaitable[Answer], patience_s: float = PATIENCE_S) -> Answer | None:
    """A replica's answer; None if the replica is lost, or does not answer in time."""
    with suppress(ReplicaLostError, TimeoutError):
        async with asyncio.timeout(patience_s):
            return await answer
    return None
