"""A real server on a real socket, in a thread of this process, with an engine of this process."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx

from forerun import Engine, EngineConfig
from forerun.core.drafter_config import BUILTIN_DRAFT, BUILTIN_TARGET, DraftModel, drafter_name
from forerun.server.config import ServerConfig
from forerun.server.guard.listening import bind, url_of
from forerun.server.run import make_server, run_until_end
from forerun.server.work.served_models import ServedModels
from forerun.server.work.service import Service

CONFIG = ServerConfig(port=0, ping_s=0.5)
ENGINE = EngineConfig(
    target=BUILTIN_TARGET,
    drafter=DraftModel(model=BUILTIN_DRAFT, adaptive=False),
    num_threads=1,
    device="cpu",
    chat_template="chatml",
)


@dataclass(frozen=True, kw_only=True)
class Served:
    """A server that answers."""

    url: str
    service: Service
    listener: socket.socket

    def client(self, **options: Any) -> httpx.Client:
        """One that reads no certificates, which takes 25 ms, as it speaks no TLS."""
        return httpx.Client(base_url=self.url, timeout=60, trust_env=False, verify=False, **options)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.listener.getsockname()[:2]
        return host, port


@contextmanager
def served(
    engine_config: EngineConfig = ENGINE,
    *,
    waits: bool = True,
    make_engine: Callable[[EngineConfig], Engine] = Engine,
    **settings: Any,
) -> Iterator[Served]:
    """A server of this engine, ended afterwards.

    Args:
        waits: until it is ready.
        make_engine: opens the engine, in its thread.
        settings: of the server, where they differ from those of all tests.
    """
    config = replace(CONFIG, **settings)
    listener = bind(config)
    is_ready = threading.Event()
    errors = []
    service = Service(
        config, lambda: make_engine(engine_config), target=engine_config.target,
        drafter_name=drafter_name(engine_config.drafter),
    )  # fmt: skip
    models = ServedModels([service])
    server = make_server(models, listener)

    url = url_of(listener)
    running = run_until_end(
        server, models, listener, on_ready=is_ready.set,
        on_end=lambda error: (errors.append(error), is_ready.set())[0],
    )  # fmt: skip
    thread = threading.Thread(target=lambda: asyncio.run(running))
    thread.start()
    try:
        if waits:
            assert is_ready.wait(60)
            assert errors == []
        yield Served(url=url, service=service, listener=listener)
    finally:
        server.should_exit = True
        service.drain_soon()
        thread.join(60)
        assert not thread.is_alive()
        assert not service.thread.is_alive


def events_of(text: str) -> list[str]:
    """The data of a stream's events."""
    return [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
