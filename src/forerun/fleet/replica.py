"""One replica: an engine with the server's routes, called through Ray Serve instead of a socket."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol

from starlette.types import Message, Scope

import forerun
from forerun.core.affinity import run_on
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError, ForerunError
from forerun.fleet.continuing import SENT, ContinuedAnswer, Continuing
from forerun.fleet.shares import claimed_cores, threads_of
from forerun.server.app import make_routes
from forerun.server.config import ServerConfig
from forerun.server.request_state import STATE, RequestState
from forerun.server.routes.answering import AnswerHook
from forerun.server.work.engine_thread import EngineState
from forerun.server.work.served_models import ServedModels
from forerun.server.work.service import Service

if TYPE_CHECKING:  # imports torch, which is loaded in the engine's thread
    from forerun.engine.engine import Engine

logger = logging.getLogger(__name__)

GONE: Final[Message] = {"type": "http.disconnect"}
HIDDEN_KEY: Final = "known to fronts only"  # replicas only need to know that there is a key
HOOK: Final = "forerun.hook"  # key of an ASGI scope
LOST_AFTER_S: Final = 15.0  # without a request for a report from a front, which asks every second


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardedState:
    """State of a request that a front hands on to a replica.

    Args:
        owner, request_id: see `RequestState`.
        front: the name of the front.
        max_s: seconds until the last token.
        continuing: the data for continuing the answer, if it may be continued.
    """

    owner: str
    request_id: str
    front: str
    max_s: float
    continuing: Continuing | None = None


class OpenEngine(Protocol):
    """Opens an engine with this number of threads, unless its own settings name one.

    Args:
        ranks_at: address and key file for ranks of other machines.
    """

    def __call__(
        self, *, num_threads: int | None, ranks_at: tuple[str, str] | None
    ) -> AbstractContextManager["Engine"]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReport:
    """State of a replica.

    Args:
        is_ready: its model is loaded and its last pass succeeded.
        failure: why it could not open its engine, or does not answer this front.
        target: its model, as in its engine's config.
        machine: the name of its machine.
        num_others: requests of other fronts, running or waiting.
    """

    is_ready: bool
    failure: ForerunError | None
    target: str
    machine: str
    num_others: int


def about_replicas(
    config: ServerConfig, open_engine: OpenEngine, engine_config: EngineConfig, *, drafter_name: str
) -> dict[str, Any]:
    """Keyword arguments for every `Replica`."""
    hidden = replace(config, api_keys=(HIDDEN_KEY,) if config.api_keys else ())
    return {
        "config": hidden, "open_engine": open_engine, "target": engine_config.target, "drafter_name": drafter_name,
        "version": forerun.__version__,
    }  # fmt: skip


class Replica:
    """A service and its routes, in its own process with one event loop.

    Args:
        open_engine: must be picklable.
        version: of the front that starts it.
        name: for users.
        share: number of its own cores; 0: it shares all cores with others.
        num_remote: ranks of its target on other machines.
        gpus_each: GPUs of each of these ranks.
    """

    def __init__(
        self,
        config: ServerConfig,
        open_engine: OpenEngine,
        *,
        target: str,
        drafter_name: str,
        version: str,
        name: str,
        share: int,
        num_remote: int = 0,
        gpus_each: float = 0,
    ) -> None:
        self._opening: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        ranks_at = None
        if num_remote and version == forerun.__version__:
            from forerun.fleet.ranks import start_remote_ranks  # imports Ray

            self._ranks = start_remote_ranks(target, num_remote, share=share, num_gpus=gpus_each)
            ranks_at = (self._ranks.address, self._ranks.key_file)
        self._service = Service(
            config,
            partial(open_engine, num_threads=threads_of(share), ranks_at=ranks_at),
            target=target,
            drafter_name=drafter_name,
        )
        self._machine = machine_name()
        self._name = f"{name} on {self._machine}"
        self._routes = make_routes(ServedModels([self._service]), hook_for=lambda request: hook_of(request.scope))
        self._tasks: set[asyncio.Task[None]] = set()
        self._was_reported = False
        self._fronts: dict[str, float] = {}  # the time of each front's last question
        self._open: defaultdict[str, set[asyncio.Event]] = defaultdict(set)  # the requests of each front
        if version == forerun.__version__:
            start = partial(self._service.start, on_ready=self._settle, on_end=self._settle)
            run_on(claimed_cores(share), start)
        else:
            self._settle(self._foreign(version))

    def _foreign(self, version: str) -> ForerunError:
        return ConfigError(
            f"{self._name} has forerun {forerun.__version__}, and this front forerun {version}: install the same "
            "version on all machines"
        )

    def _settle(self, error: BaseException | None = None) -> None:
        if not self._opening.done():
            self._opening.set_result(error)

    async def report(self, front: str, version: str) -> ReplicaReport:
        """The replica's state. Waits until the engine is open or has failed to open.

        Args:
            front: a unique name for the front that asks.
            version: of the front.
        """
        self._told_front(front)
        error = await self._opening
        self._was_reported = True
        failure = error if isinstance(error, ForerunError) else None
        if failure is not None and self._name not in str(failure):
            failure.args = (f"{self._name}: {failure}",)
        if version != forerun.__version__:
            failure = self._foreign(version)
        return ReplicaReport(
            is_ready=failure is None and self._service.is_ready,
            failure=failure,
            target=self._service.target,
            machine=self._machine,
            num_others=sum(len(requests) for name, requests in self._open.items() if name != front),
        )

    def _told_front(self, front: str) -> None:
        """A front has asked. End the requests of fronts that no longer ask, because nobody reads them."""
        now_s = monotonic()
        self._fronts[front] = now_s
        for lost in [name for name, asked_s in self._fronts.items() if now_s - asked_s > LOST_AFTER_S]:
            del self._fronts[lost]
            for is_gone in self._open.pop(lost, ()):
                is_gone.set()

    async def leave(self, front: str) -> int:
        """A front ends. Returns how many others use this replica."""
        self._fronts.pop(front, None)
        return len(self._fronts)

    async def metrics(self) -> str:
        """The replica's Prometheus metrics."""
        return self._service.metrics.page().decode()

    async def check_health(self) -> None:
        """Raise if the replica must be restarted. Ray Serve calls this, and sends requests after the first success.

        A replica that could not open its engine counts as healthy until it has reported the reason.
        """
        error = await self._opening
        has_more_to_say = isinstance(error, ForerunError) and not self._was_reported
        if self._is_dead and not has_more_to_say:
            raise RuntimeError("the engine has ended") from error

    @property
    def _is_dead(self) -> bool:
        """Whether the engine has ended on its own, for example after the loss of a rank."""
        return self._service.thread.state is EngineState.ENDED and not self._service.is_draining

    async def end(self) -> None:
        """Stop the engine and everything it started."""
        await self._service.end()

    async def answer(self, scope: Scope, state: ForwardedState, body: bytes) -> AsyncIterator[Message]:
        """The ASGI messages of the answer to a request; those with events have their records.

        If the caller stops reading, the client counts as gone.

        Raises:
            RuntimeError: the engine has ended, or the front was silent for too long; so the answer does not look
                complete, and another replica may continue it.
        """
        sent: asyncio.Queue[Message | None] = asyncio.Queue()
        is_gone = asyncio.Event()
        others = self._open[state.front]
        task = asyncio.create_task(self._play(scope, state, body, sent, is_gone))
        others.add(is_gone)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            while (message := await sent.get()) is not None and not self._is_dead:
                yield message
            if self._is_dead or is_gone.is_set():
                raise RuntimeError("the engine has ended" if self._is_dead else "its front counts as lost")
        finally:
            is_gone.set()
            others.discard(is_gone)

    async def _play(
        self,
        scope: Scope,
        state: ForwardedState,
        body: bytes,
        sent: asyncio.Queue[Message | None],
        is_gone: asyncio.Event,
    ) -> None:
        if state.continuing is None:
            hook = AnswerHook(max_s=state.max_s, process=self._name)
        else:
            hook = ContinuedAnswer(state.continuing, max_s=state.max_s, process=self._name)
        own = {STATE: RequestState(owner=state.owner, request_id=state.request_id), HOOK: hook}
        asked: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if asked:
                return asked.pop()
            await is_gone.wait()
            return GONE

        async def send(message: Message) -> None:
            records = hook.take_records() if isinstance(hook, ContinuedAnswer) else ()
            sent.put_nowait({**message, SENT: records} if records else dict(message))

        try:
            await self._routes({**scope, **own}, receive, send)
        except Exception:
            logger.exception("request %s failed", state.request_id)
        finally:
            sent.put_nowait(None)


def hook_of(scope: Scope) -> AnswerHook:
    """The hook of a request's answer, which its replica has set."""
    hook = scope[HOOK]
    assert isinstance(hook, AnswerHook), "a replica sets the hook of every request"
    return hook


def machine_name() -> str:
    """The name of the machine of this process: the name in Ray's settings, else its host name."""
    import ray  # takes seconds, and fronts import this module before they listen

    own = ray.get_runtime_context().get_node_id()
    node = next(node for node in ray.nodes() if node["NodeID"] == own)
    return str(node["NodeManagerHostname"] if node["NodeName"] == node["NodeManagerAddress"] else node["NodeName"])
