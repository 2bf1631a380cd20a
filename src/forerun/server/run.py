"""Runs a server from startup to shutdown."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from forerun.core.interrupts import ended_by
from forerun.server.app import make_routes
from forerun.server.config import ServerConfig
from forerun.server.guard.connection import connection_class
from forerun.server.guard.gate import Gate
from forerun.server.guard.listening import url_of
from forerun.server.work.served_models import ServedModels
from forerun.wires.endpoint import is_loopback

logger = logging.getLogger(__name__)

SPARE_S: Final = 5.0  # to send the last events after the requests were cancelled


class DrainingServer(uvicorn.Server):
    """uvicorn's server. The first signal drains it and it exits with 0; a second signal ends it at once."""

    drain: Callable[[], None]  # called by the signal handler
    abandon: Callable[[], None]  # called by the signal handler before the process ends at once
    drain_s: float
    failure: BaseException | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        with ended_by(self.handle_exit):
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.abandon()
            os._exit(128 + sig)
        self.should_exit = True
        self.drain()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        number = len(self.server_state.tasks)
        waits = f"the server ends once {number} request{'s are' if number > 1 else ' is'} answered"
        limit = f"in at most {self.drain_s:g} s; a second signal ends it at once"
        logger.info("%s", f"{waits}, {limit}" if number else "the server ends")
        await super().shutdown(sockets)

    def end(self, error: BaseException | None) -> None:
        """Stop serving. If there is an error, the caller that runs this server raises it afterwards."""
        self.failure = self.failure or error
        self.should_exit = True


def serve(models: ServedModels, listener: socket.socket, *, on_ready: Callable[[str], None]) -> None:
    """Serve until a signal arrives, the first model cannot be loaded, or the engine of a single one ends.

    Args:
        on_ready: called with the server's URL once the first model is loaded.

    Raises:
        the error that kept the first model from loading, or ended the engine of a single one.
    """
    server = make_server(models, listener)
    url = url_of(listener)
    asyncio.run(run_until_end(server, models, listener, on_ready=lambda: on_ready(url), on_end=server.end))
    if server.failure is not None:
        raise server.failure
    if any(service.thread.is_alive for service in models.services):
        os._exit(0)  # a thread is still loading a model, which cannot be interrupted


def make_server(models: ServedModels, listener: socket.socket) -> DrainingServer:
    """The server for these models."""
    return server_of(make_routes(models), models.config, listener, drain=models.drain_soon)


def server_of(
    routes: ASGIApp,
    config: ServerConfig,
    listener: socket.socket,
    *,
    drain: Callable[[], None],
    abandon: Callable[[], None] = lambda: None,
) -> DrainingServer:
    """A server with the limits of this config, and the gate before its routes.

    Args:
        drain: called by the signal handler on the first signal.
        abandon: called by it on the second signal, before the process ends at once.
    """
    server = DrainingServer(
        uvicorn.Config(
            Gate(routes, config, is_loopback=is_loopback(str(listener.getsockname()[0]))),
            http=connection_class(config),
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            log_level="error",  # its warnings are about malformed requests
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=int(config.idle_s),
            timeout_graceful_shutdown=int(config.drain_s + SPARE_S),
            h11_max_incomplete_event_size=config.max_header_bytes,
        )
    )
    server.drain = drain
    server.abandon = abandon
    server.drain_s = config.drain_s
    return server


async def run_until_end(
    server: DrainingServer,
    models: ServedModels,
    listener: socket.socket,
    *,
    on_ready: Callable[[], None],
    on_end: Callable[[BaseException | None], None],
) -> None:
    """Load the first model and serve; on return everything is closed."""
    models.start(on_ready=on_ready, on_end=on_end)
    try:
        await server.serve(sockets=[listener])
    finally:
        await models.end()
