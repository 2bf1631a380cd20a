"""One replica: an engine with the server's routes, asked by Ray Serve in place of a socket."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from forerun.core.errors import ForerunError
from forerun.runtime.affinity import run_on
from forerun.server.app import make_routes
from forerun.server.config import ServerConfig
from forerun.server.guard.gate import Message, Scope
from forerun.server.work.engine_thread import EngineState, MakeEngine
from forerun.server.work.served_models import ServedModels
from forerun.server.work.service import Service

logger = logging.getLogger(__name__)

GONE: Final[Message] = {"type": "http.disconnect"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReport:
    """How a replica is.

    Args:
        is_ready: its model is there and its last pass worked.
        failure: why it could not open its engine.
    """

    is_ready: bool
    failure: ForerunError | None


class Replica:
    """A service and its routes. Lives in a process of its own, in one event loop.

    Args:
        cores: that its threads may use; none: all.
    """

    def __init__(
        self, config: ServerConfig, make_engine: MakeEngine, *, target: str, drafter_name: str, cores: Sequence[int]
    ) -> None:
        self._opening: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self._service = Service(
            config, make_engine, target=target, drafter_name=drafter_name, on_end=self._settle, on_ready=self._settle
        )
        self._routes = make_routes(ServedModels([self._service]))
        self._tasks: set[asyncio.Task[None]] = set()
        self._was_reported = False
        run_on(cores, self._service.begin)

    def _settle(self, error: BaseException | None = None) -> None:
        if not self._opening.done():
            self._opening.set_result(error)

    async def report(self) -> ReplicaReport:
        """How it is, once its engine is there or could not be opened."""
        error = await self._opening
        self._was_reported = True
        failure = error if isinstance(error, ForerunError) else None
        return ReplicaReport(is_ready=self._service.is_ready, failure=failure)

    async def metrics(self) -> str:
        """Its numbers for Prometheus."""
        return self._service.metrics.page().decode()

    async def check_health(self) -> None:
        """Raise where the replica must be started anew. Ray Serve asks, and gives it requests after the first answer.

        One that could not open its engine is taken for well until it has reported why.
        """
        error = await self._opening
        has_more_to_say = isinstance(error, ForerunError) and not self._was_reported
        is_dead = self._service.thread.state is EngineState.ENDED and not self._service.is_draining
        if is_dead and not has_more_to_say:
            raise RuntimeError("the engine has ended") from error

    async def end(self) -> None:
        """End the engine and all that it started."""
        await self._service.end()

    async def answer(self, scope: Scope, body: bytes) -> AsyncIterator[Message]:
        """What the routes send for a request. Whoever reads no further takes the client's place that went away."""
        sent: asyncio.Queue[Message | None] = asyncio.Queue()
        is_gone = asyncio.Event()
        task = asyncio.create_task(self._play(scope, body, sent, is_gone))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            while (message := await sent.get()) is not None:
                yield message
        finally:
            is_gone.set()

    async def _play(
        self, scope: Scope, body: bytes, sent: asyncio.Queue[Message | None], is_gone: asyncio.Event
    ) -> None:
        asked: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if asked:
                return asked.pop()
            await is_gone.wait()
            return GONE

        async def send(message: Message) -> None:
            sent.put_nowait(dict(message))

        try:
            await self._routes(scope, receive, send)
        except Exception:
            logger.exception("request %s failed", scope["state"]["request_id"])
        finally:
            sent.put_nowait(None)
