"""A server from its first socket to its last request."""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Final

import uvicorn

from forerun.server.app import make_app
from forerun.server.config import ServerConfig
from forerun.server.guard.connection import connection_class
from forerun.server.guard.gate import App
from forerun.server.guard.listening import url_of
from forerun.server.work.engine_thread import MakeEngine
from forerun.server.work.served_models import Room, ServedModels
from forerun.server.work.service import Service
from forerun.wires.endpoint import is_loopback

SPARE_S: Final = 5.0  # for the last events to be sent, after requests were ended


class DrainingServer(uvicorn.Server):
    """uvicorn's server, which drains at the first signal and then exits with 0, and ends at once at the second."""

    drain: Callable[[], None]  # for the handler of a signal

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + sig)
        self.should_exit = True
        self.drain()


def serve(
    config: ServerConfig,
    listener: socket.socket,
    make_engine: MakeEngine,
    *,
    target: str,
    drafter_name: str,
    on_ready: Callable[[str], None],
) -> None:
    """Serve one model until a signal comes or the engine ends.

    Args:
        on_ready: called with the server's address once requests are answered.

    Raises:
        whatever kept the engine from opening, or ended it.
    """
    ending, url = Ending(), url_of(listener)
    service = Service(
        config, make_engine, target=target, drafter_name=drafter_name, on_end=ending, on_ready=lambda: on_ready(url)
    )
    ending.serve(ServedModels([service]), listener)


def serve_several(
    config: ServerConfig,
    listener: socket.socket,
    services: Sequence[Service],
    room: Room,
    *,
    on_ready: Callable[[str], None],
) -> None:
    """Serve several models until a signal comes.

    Args:
        on_ready: called with the server's address once the first model is loaded.

    Raises:
        whatever kept the first model from that.
    """
    ending, url = Ending(), url_of(listener)
    ending.serve(ServedModels(services, room, on_ready=lambda: on_ready(url), on_end=ending), listener)


class Ending:
    """Ends a server when it is called, with the error that was the cause, which is then raised by `serve`."""

    def __init__(self) -> None:
        self._server: DrainingServer | None = None
        self._failures: list[BaseException] = []

    def __call__(self, error: BaseException | None) -> None:
        if error is not None:
            self._failures.append(error)
        if self._server is not None:
            self._server.should_exit = True

    def serve(self, models: ServedModels, listener: socket.socket) -> None:
        """Serve until a signal comes or this is called."""
        self._server = make_server(models, listener)
        asyncio.run(run_until_end(self._server, models, listener))
        if self._failures:
            raise self._failures[0]
        if any(service.thread.is_alive for service in models.services):
            os._exit(0)  # one was stopped while it read a model, which nothing can interrupt


def make_server(models: ServedModels, listener: socket.socket) -> DrainingServer:
    """The server of these models."""
    app = make_app(models, is_loopback=is_local(listener))
    return server_of(app, models.config, drain=models.drain_soon)


def is_local(listener: socket.socket) -> bool:
    """True where only this machine can connect."""
    return is_loopback(str(listener.getsockname()[0]))


def server_of(app: App, config: ServerConfig, *, drain: Callable[[], None]) -> DrainingServer:
    """A server with the limits of this config.

    Args:
        drain: called by the first signal's handler.
    """
    server = DrainingServer(
        uvicorn.Config(
            app,
            http=connection_class(config),
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            log_level="error",  # its warnings are about bytes that strangers sent
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
    """Load the model, of several the first, and serve; nothing is left open afterwards."""
    models.begin()
    try:
        await server.serve(sockets=[listener])
    finally:
        await models.end()
