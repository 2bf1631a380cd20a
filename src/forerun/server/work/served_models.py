"""The models of a server: a single one, or several that are loaded on demand."""

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from forerun.core.errors import ForerunError
from forerun.server.config import ServerConfig
from forerun.server.metrics import merged
from forerun.server.protocols.errors import ApiError, stopping
from forerun.server.work.engine_thread import EngineState
from forerun.server.work.job import TOO_LATE
from forerun.server.work.service import Service

logger = logging.getLogger(__name__)

READY: Final = "forerun:ready "
FOREIGN_NAMES: Final = ("claude-",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The limit on the models that are loaded at once; at least one is always allowed.

    Args:
        max_loaded: their number, whatever their size; None: as many as fit into `num_bytes`, and only one on a GPU.
        num_bytes: memory for all models together; None: no limit.
        sizes: bytes of each model, by the model name given to the engine.
    """

    max_loaded: int | None = None
    num_bytes: int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)

    def holds(self, services: Sequence[Service]) -> bool:
        """True if these models may be loaded at once."""
        if self.max_loaded is not None or len(services) <= 1:
            return len(services) <= (self.max_loaded or 1)
        if any(item.is_on_gpu for item in services):
            return False
        return self.num_bytes is None or sum(self.sizes.get(item.target, 0) for item in services) <= self.num_bytes


class ServedModels:
    """A service for each model. Use it in the event loop's thread only.

    A single model is loaded at startup, and requests before that get an error that asks them to retry. With several
    models, the first is loaded at startup and the others on their first request, which waits. If a model does not fit
    in addition to the loaded ones, the least recently used of these is unloaded once its requests are answered. New
    requests for that model wait until the other one is loaded, so every model gets its turn.

    With `keep_alive_s`, a model that no request used for so long is unloaded, also a single one.
    """

    def __init__(self, services: Sequence[Service], room: Room | None = None) -> None:
        self.services = tuple(services)
        self._room = room or Room()
        self._num_uses: Counter[Service] = Counter()
        self._used_s: dict[Service, float] = {}
        self._loads: dict[Service, asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()  # one load at a time, in order of request
        self._leaving: Service | None = None
        self._changed = asyncio.Event()  # set when an answer ends or a model is unloaded
        self._is_begun = False
        self._unloads: set[asyncio.Task[None]] = set()

    @property
    def config(self) -> ServerConfig:
        return self.first.config

    @property
    def first(self) -> Service:
        """The model for requests that name none."""
        return self.services[0]

    @property
    def are_several(self) -> bool:
        return len(self.services) > 1

    @property
    def are_on_demand(self) -> bool:
        """Whether models are loaded when a request asks for them."""
        return self.are_several or self.config.keep_alive_s is not None

    @property
    def names(self) -> list[str]:
        return [service.model_name for service in self.services]

    @property
    def state(self) -> str:
        """The server's state. With several models it is ready once the first is loaded, unless all loaded ones fail."""
        loaded = [service for service in self.services if service.is_loaded]
        if not self.are_on_demand or self.first.is_draining or not self._is_begun:
            return self.first.state
        if loaded and not any(service.is_ready for service in loaded):
            return loaded[0].state
        return EngineState.READY.value

    def state_of(self, service: Service) -> str:
        """State of one of several models, in llama-server's terms."""
        return "loaded" if service.is_loaded else "loading" if service in self._loads else "unloaded"

    def start(self, *, on_ready: Callable[[], None], on_end: Callable[[BaseException | None], None]) -> None:
        """Start to load the first model.

        Args:
            on_ready: called in the loop's thread once it is loaded.
            on_end: called in the loop's thread with the error if it fails to load, and when a single model's engine has
                ended.
        """

        def be_begun(load: "asyncio.Task[None]") -> None:
            if load.cancelled():
                return
            if (error := load.exception()) is not None:
                on_end(error)
                return
            self._is_begun = True
            on_ready()

        if self.are_on_demand:
            self._load_of(self.first).add_done_callback(be_begun)
        else:
            self.first.start(on_ready=on_ready, on_end=on_end)

    def find(self, name: str | None, *, is_exact: bool = False) -> Service:
        """The model with this name; for None, the first model.

        Clients for one provider send that provider's names, also in requests in which the user cannot set the model.
        So a single model accepts every name, and the first of several accepts those of Anthropic's models, unless
        `requires_model_name` is set.

        Args:
            is_exact: only a model's own names count.

        Raises:
            ApiError: there is no such model.
        """
        for service in self.services:
            if name in (None, service.model_name, service.target):
                return service
        is_foreign = name is not None and name.startswith(FOREIGN_NAMES)
        if not (is_exact or self.config.requires_model_name) and (is_foreign or not self.are_several):
            return self.first
        message = f"The model does not exist on this server, which has {', '.join(self.names)}."
        raise ApiError(404, message, code="model_not_found", param="model")

    async def use(self, service: Service, held: ExitStack) -> None:
        """Load a model and keep it loaded until `held` is closed. Does nothing for a single one that stays loaded.

        Raises:
            ApiError: it cannot be loaded, or not in time.
        """
        if not self.are_on_demand:
            return
        try:
            async with asyncio.timeout(self.config.max_request_s):
                while service is self._leaving:
                    await self._next_change()
                self._num_uses[service] += 1
                held.callback(self._release, service)
                if not service.is_loaded:
                    await asyncio.shield(self._load_of(service))
        except TimeoutError:
            raise ApiError(504, TOO_LATE, code="deadline_exceeded") from None
        except ApiError:
            raise
        except Exception as error:
            logger.error("%s cannot be loaded", service.model_name, exc_info=error)
            reason = str(error).replace(service.target, service.model_name)
            reason = reason if isinstance(error, ForerunError) else "see the server's log for the cause"
            message = f"The model {service.model_name} cannot be loaded: {reason}."
            raise ApiError(500, message, code="model_not_loaded", param="model") from error

    def _release(self, service: Service) -> None:
        self._num_uses[service] -= 1
        self._told_used(service)
        self._changed.set()

    def _told_used(self, service: Service) -> None:
        self._used_s[service] = monotonic()
        if self.config.keep_alive_s is not None:
            self._unload_later(service, self.config.keep_alive_s)

    def _unload_later(self, service: Service, seconds: float) -> None:
        """Unload a model after so long, unless a request uses it."""

        def unload() -> None:
            idle_s = monotonic() - self._used_s[service]
            if not self._num_uses[service] and idle_s >= seconds and service.is_loaded:
                self._unloads = {task for task in self._unloads if not task.done()} | {
                    asyncio.create_task(self._unload_idle(service))
                }

        asyncio.get_running_loop().call_later(seconds, unload)

    async def _unload_idle(self, service: Service) -> None:
        async with self._turn:
            if self._leaving is None and not self._num_uses[service] and service.is_loaded:
                logger.info("%s is unloaded: no request used it for a while", service.model_name)
                await self._leave(service)

    def _load_of(self, service: Service) -> "asyncio.Task[None]":
        """The task that loads a model, started if necessary. It continues even if no request waits for it any more."""
        if service not in self._loads:
            self._loads[service] = task = asyncio.create_task(self._load(service))
            task.add_done_callback(lambda task: task.cancelled() or task.exception())  # mark as retrieved
        return self._loads[service]

    async def _load(self, service: Service) -> None:
        try:
            async with self._turn:
                await self._make_room(service)
                if self.first.is_draining:
                    raise stopping()
                try:
                    service.start()
                    await service.opened()
                except Exception:
                    await service.unload()
                    raise
                self._told_used(service)
        finally:
            del self._loads[service]

    async def _make_room(self, service: Service) -> None:
        """Unload models until this one fits or no other is loaded."""
        while True:
            loaded = [item for item in self.services if item.is_loaded]
            if not loaded or self._room.holds([*loaded, service]):
                return
            await self._leave(min(loaded, key=lambda item: (self._num_uses[item] > 0, self._used_s.get(item, 0.0))))

    async def _leave(self, service: Service) -> None:
        """Unload a model once no request uses it; new ones for it wait."""
        self._leaving = service
        try:
            while self._num_uses[service]:
                await self._next_change()
            await service.unload()
            await asyncio.to_thread(gc.collect)  # an engine has reference cycles
        finally:
            self._leaving = None
            self._changed.set()

    async def _next_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def drain_soon(self) -> None:
        """Accept no more requests. May be called from a signal handler."""
        for service in self.services:
            service.drain_soon()

    async def end(self) -> None:
        """Stop all loads and services."""
        loads = [*self._loads.values(), *self._unloads]
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)
        await asyncio.gather(*(service.end() for service in self.services))

    def metrics_page(self) -> bytes:
        """Prometheus metrics; with several models each has a label with its name."""
        if not self.are_several:
            return self.first.metrics.page()
        return merged(
            {(item.model_name,): page_of(item) for item in self.services}, labels=("model",), is_one_process=True
        )


def page_of(service: Service) -> str:
    """A model's metrics, without the `ready` metric if it is not loaded: a 0 there would trigger alerts."""
    page = service.metrics.page().decode()
    lines = page.splitlines(keepends=True)
    return page if service.is_loaded else "".join(line for line in lines if not line.startswith(READY))
