"""Runs a server from startup to shutdown."""

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

SPARE_S: Final = 5.0  # to send the last events after the requests were cancelled


class DrainingServer(uvicorn.Server):
    """uvicorn's server. The first signal drains it and it exits with 0; a second signal ends it at once."""

    drain: Callable[[], None]  # called by the signal handler

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
    """Serve one model until a signal arrives or the engine ends.

    Args:
        on_ready: called with the server's URL once it can answer requests.

    Raises:
        the error that kept the engine from opening or ended it.
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
    """Serve several models until a signal arrives.

    Args:
        on_ready: called with the server's URL once the first model is loaded.

    Raises:
        the error that kept the first model from loading.
    """
    ending, url = Ending(), url_of(listener)
    ending.serve(ServedModels(services, room, on_ready=lambda: on_ready(url), on_end=ending), listener)


class Ending:
    """A callback that stops the server. If it is called with an error, `serve` raises that error."""

    def __init__(self) -> None:
        self._server: DrainingServer | None = None
        self._failures: list[BaseException] = []

    def __call__(self, error: BaseException | None) -> None:
        if error is not None:
            self._failures.append(error)
        if self._server is not None:
            self._server.should_exit = True

    def serve(self, models: ServedModels, listener: socket.socket) -> None:
        """Serve until a signal arrives or this object is called."""
        self._server = make_server(models, listener)
        asyncio.run(run_until_end(self._server, models, listener))
        if self._failures:
            raise self._failures[0]
        if any(service.thread.is_alive for service in models.services):
            os._exit(0)  # a thread is still loading a model, which cannot be interrupted


def make_server(models: ServedModels, listener: socket.socket) -> DrainingServer:
    """The server for these models."""
    app = make_app(models, is_loopback=is_local(listener))
    return server_of(app, models.config, drain=models.drain_soon)


def is_local(listener: socket.socket) -> bool:
    """True if only this machine can connect."""
    return is_loopback(str(listener.getsockname()[0]))


def server_of(app: App, config: ServerConfig, *, drain: Callable[[], None]) -> DrainingServer:
    """A server with the limits of this config.

    Args:
        drain: called by the signal handler on the first signal.
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
