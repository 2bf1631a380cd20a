"""The process with the server's socket. It has the gate, the page and the health routes, and forwards the rest."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from forerun.core.config import EngineConfig
from forerun.core.interrupts import handled_signals
from forerun.fleet.config import FleetConfig
from forerun.fleet.fleet import Fleet
from forerun.fleet.forwarding import Forwarder
from forerun.fleet.replica import OpenEngine
from forerun.server.guard.listening import url_of
from forerun.server.metrics import merged
from forerun.server.routes.error_handlers import show_errors
from forerun.server.routes.health import LOADING, unavailable
from forerun.server.routes.page import page_router
from forerun.server.run import server_of

PLACE: Final = ("replica", "machine")


def serve_replicas(
    config: FleetConfig,
    listener: socket.socket,
    open_engine: OpenEngine,
    engine_config: EngineConfig,
    *,
    drafter_name: str,
    on_ready: Callable[[str], None],
) -> None:
    """Serve until a signal arrives or no replica can be opened; see `run.serve`.

    Args:
        open_engine: opens an engine of this config in a replica's process; must be picklable.

    Raises:
        the error that kept the replicas from opening.
    """
    fleet = Fleet(config, open_engine, engine_config, drafter_name=drafter_name)
    failure = asyncio.run(run_front(fleet, listener, on_ready=lambda: on_ready(url_of(listener))))
    if fleet.is_stuck:
        fleet.clear()
    if failure is not None:
        raise failure
    if fleet.is_stuck:
        os._exit(0)  # a thread is still in a call of Ray's, which cannot be interrupted


async def run_front(fleet: Fleet, listener: socket.socket, *, on_ready: Callable[[], None]) -> BaseException | None:
    """Start the replicas and serve; on return everything is closed. Returns why the replicas could not be opened."""

    def keep_signals() -> None:
        for number in handled_signals():
            signal.signal(number, server.handle_exit)

    def drain() -> None:
        forwarder.is_draining = True
        loop.call_later(fleet.config.server.drain_s, forwarder.end_all)

    def drain_soon() -> None:
        loop.call_soon_threadsafe(drain)

    loop = asyncio.get_running_loop()
    forwarder = Forwarder(fleet)
    server = server_of(
        front_app(fleet, forwarder), fleet.config.server, listener, drain=drain_soon, abandon=fleet.clear
    )
    fleet.start(keep_signals=keep_signals, on_ready=on_ready, on_end=server.end)
    try:
        await server.serve(sockets=[listener])
    finally:
        await fleet.end()
    return server.failure


def front_app(fleet: Fleet, forwarder: Forwarder) -> FastAPI:
    """The app with the front's own routes; all other requests go to the forwarder."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    show_errors(app)

    @app.get("/health")
    async def show_health(request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"}) if fleet.num_ready else unavailable(LOADING)

    @app.get("/livez")
    async def show_liveness(request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    @app.get("/ready")
    async def show_readiness(request: Request) -> JSONResponse:
        state = "stopping" if forwarder.is_draining else "ready" if fleet.num_ready else "loading"
        answer = {"status": state, "replicas": fleet.num_replicas, "replicas_ready": fleet.num_ready}
        return JSONResponse(answer, status_code=200 if state == "ready" else 503)

    @app.get("/metrics")
    async def show_metrics(request: Request) -> Response:
        return Response(merged(await fleet.pages(), labels=PLACE), media_type=CONTENT_TYPE_LATEST)

    app.include_router(page_router())
    app.mount("", forwarder)
    return app
