"""One replica: an engine with the server's routes, called through Ray Serve instead of a socket."""

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
    """State of a replica.

    Args:
        is_ready: its model is loaded and its last pass succeeded.
        failure: why it could not open its engine.
    """

    is_ready: bool
    failure: ForerunError | None


class Replica:
    """A service and its routes, in its own process with one event loop.

    Args:
        cores: cores that its threads may use; empty for all.
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
        """The replica's state. Waits until the engine is open or has failed to open."""
        error = await self._opening
        self._was_reported = True
        failure = error if isinstance(error, ForerunError) else None
        return ReplicaReport(is_ready=self._service.is_ready, failure=failure)

    async def metrics(self) -> str:
        """The replica's Prometheus metrics."""
        return self._service.metrics.page().decode()

    async def check_health(self) -> None:
        """Raise if the replica must be restarted. Ray Serve calls this, and sends requests after the first success.

        A replica that could not open its engine counts as healthy until it has reported the reason.
        """
        error = await self._opening
        has_more_to_say = isinstance(error, ForerunError) and not self._was_reported
        is_dead = self._service.thread.state is EngineState.ENDED and not self._service.is_draining
        if is_dead and not has_more_to_say:
            raise RuntimeError("the engine has ended") from error

    async def end(self) -> None:
        """Stop the engine and everything it started."""
        await self._service.end()

    async def answer(self, scope: Scope, body: bytes) -> AsyncIterator[Message]:
        """The ASGI messages of the answer to a request. If the caller stops reading, the client counts as gone."""
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
