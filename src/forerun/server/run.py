"""Runs a server from startup to shutdown."""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Final

import uvicorn

from forerun.server.app import make_routes
from forerun.server.config import ServerConfig
from forerun.server.guard.connection import connection_class
from forerun.server.guard.gate import App, Gate
from forerun.server.guard.listening import url_of
from forerun.server.work.engine_thread import MakeEngine
from forerun.server.work.served_models import Room, ServedModels
from forerun.server.work.service import Service
from forerun.wires.endpoint import is_loopback

SPARE_S: Final = 5.0  # to send the last events after the requests were cancelled


class DrainingServer(uvicorn.Server):
    """uvicorn's server. The first signal drains it and it exits with 0; a second signal ends it at once."""

    drain: Callable[[], None]  # called by the signal handler
    failure: BaseException | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + sig)
        self.should_exit = True
        self.drain()

    def end(self, error: BaseException | None) -> None:
        """Stop serving. If there is an error, the caller that runs this server raises it afterwards."""
        self.failure = self.failure or error
        self.should_exit = True


def serve(
    config: ServerConfig,
    listener: socket.socket,
    make_engine: MakeEngine,
    *,
    target: str,
    drafter_name: str,
    on_ready: Callable[[str], None],
) -> None:
    """Serve one model until a signal arrives or the engine ends.

    Args:
        on_ready: called with the server's URL once it can answer requests.

    Raises:
        the error that kept the engine from opening or ended it.
    """
    url = url_of(listener)
    service = Service(
        config, make_engine, target=target, drafter_name=drafter_name, on_end=lambda error: server.end(error),
        on_ready=lambda: on_ready(url),
    )  # fmt: skip
    models = ServedModels([service])
    server = make_server(models, listener)
    run(server, models, listener)


def serve_several(
    config: ServerConfig,
    listener: socket.socket,
    services: Sequence[Service],
    room: Room,
    *,
    on_ready: Callable[[str], None],
) -> None:
    """Serve several models until a signal arrives.

    Args:
        on_ready: called with the server's URL once the first model is loaded.

    Raises:
        the error that kept the first model from loading.
    """
    url = url_of(listener)
    models = ServedModels(services, room, on_ready=lambda: on_ready(url), on_end=lambda error: server.end(error))
    server = make_server(models, listener)
    run(server, models, listener)


def run(server: DrainingServer, models: ServedModels, listener: socket.socket) -> None:
    """Serve until a signal arrives or the server is ended; raises the error that ended it."""
    asyncio.run(run_until_end(server, models, listener))
    if server.failure is not None:
        raise server.failure
    if any(service.thread.is_alive for service in models.services):
        os._exit(0)  # a thread is still loading a model, which cannot be interrupted


def make_server(models: ServedModels, listener: socket.socket) -> DrainingServer:
    """The server for these models."""
    return server_of(make_routes(models), models.config, listener, drain=models.drain_soon)


def server_of(
    routes: App, config: ServerConfig, listener: socket.socket, *, drain: Callable[[], None]
) -> DrainingServer:
    """A server with the limits of this config, and the gate before its routes.

    Args:
        drain: called by the signal handler on the first signal.
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
    return server


async def run_until_end(server: DrainingServer, models: ServedModels, listener: socket.socket) -> None:
    """Load the first model and serve; on return everything is closed."""
    models.begin()
    try:
        await server.serve(sockets=[listener])
    finally:
        await models.end()
