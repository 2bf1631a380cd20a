"""What a front does when replicas end, refuse or belong to others: a real fleet, over replicas of a test."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from starlette.types import Message, Scope

from forerun.core.errors import ForerunError
from forerun.fleet import fleet as fleet_module
from forerun.fleet import forwarding, scaling
from forerun.fleet.config import FleetConfig
from forerun.fleet.continuing import SENT, SentStep
from forerun.fleet.fleet import Fleet
from forerun.fleet.forwarding import Forwarder
from forerun.fleet.homes import by_hash, session_of
from forerun.fleet.relay import ReplicaLostError
from forerun.fleet.replica import ForwardedState, ReplicaReport
from forerun.server.request_state import STATE, RequestState
from tests.server.serving import CONFIG, ENGINE

CLUSTER = FleetConfig(server=replace(CONFIG, max_request_s=8.0, ping_s=0.05), ray_address="auto", num_replicas=2)
START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
FULL = {"type": "http.response.start", "status": 429, "headers": [(b"content-type", b"application/json")]}
LAST = {"type": "http.response.body", "body": b""}


def event(number: int) -> Message:
    body = f"data: {number}\n\n".encode()
    return {"type": "http.response.body", "body": body, "more_body": True, SENT: [SentStep(0, (number,), 1)]}


class Writer:
    """A replica of a test.

    Args:
        fronts: others that use it.
        messages: its answer, behind which it is lost; None: it never answers.
    """

    def __init__(
        self, fronts: Iterable[str] = (), messages: Iterable[Message] | None = (START, LAST), *,
        target: str = ENGINE.target, slow_s: float = 0.0,
    ) -> None:  # fmt: skip
        self.fronts = set(fronts)
        self.messages = messages
        self.target = target
        self.slow_s = slow_s
        self.asked: list[ForwardedState] = []
        self.on_loss: Callable[[], None] = lambda: None

    async def report(self, front: str, _version: str) -> ReplicaReport:
        await asyncio.sleep(self.slow_s)
        self.fronts.add(front)
        return ReplicaReport(is_ready=True, failure=None, target=self.target, machine="m", num_others=0)

    async def leave(self, front: str) -> int:
        self.fronts.discard(front)
        return len(self.fronts)

    async def end(self) -> None:
        pass

    async def answer(self, _scope: Scope, state: ForwardedState, _body: bytes) -> AsyncIterator[Message]:
        self.asked.append(state)
        if self.messages is None:
            await asyncio.Event().wait()
        for message in self.messages or ():
            yield dict(message)
        if LAST not in (self.messages or ()):
            self.on_loss()
            raise ReplicaLostError("it is lost")


@dataclass
class Found:
    replica: Writer
    is_leaving: bool = False
    is_ending: bool = False


@dataclass
class Writers:
    """The cluster of a test."""

    replicas: dict[int, Writer]
    join_s: float = 0.0
    stopped: list[int] = field(default_factory=list)
    is_broken: bool = False

    def start(self, indices: Iterable[int]) -> None:
        for index in indices:
            self.replicas.setdefault(index, Writer())
        time.sleep(self.join_s)

    def add(self, index: int) -> None:
        if self.is_broken:
            raise ReplicaLostError("Ray Serve does not answer")
        self.start([index])

    def find(self) -> dict[int, Found]:
        return {index: Found(replica) for index, replica in self.replicas.items()}

    def stop(self, indices: Iterable[int]) -> None:
        self.stopped += indices


def fleet_of(cluster: Writers, config: FleetConfig = CLUSTER) -> Fleet:
    fleet = Fleet(config, cast(Any, None), ENGINE, drafter_name="none")

    def join() -> Writers:
        cluster.start(range(config.num_replicas))
        return cluster

    fleet._join, fleet._leave = join, lambda: None  # type: ignore[method-assign, assignment]
    return fleet


def start_fleet(fleet: Fleet, on_end: Callable[[BaseException], None] = lambda error: None) -> None:
    fleet.start(keep_signals=lambda: None, on_ready=lambda: None, on_end=on_end)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


class Client:
    """A client of a safe stream."""

    def __init__(self, forwarder: Forwarder) -> None:
        self.got: list[Message] = []
        self.goes = asyncio.Event()
        asked: list[Message] = [{"type": "http.request", "body": b"{}", "more_body": False}]
        scope = {
            "type": "http", "method": "POST", "path": "/v1/completions", "raw_path": b"/v1/completions",
            "query_string": b"", "root_path": "",
            "headers": [(b"content-type", b"application/json"), (b"x-forerun-retry", b"safe")],
            STATE: RequestState(owner="", request_id="id"),
        }  # fmt: skip

        async def receive() -> Message:
            if asked:
                return asked.pop()
            await self.goes.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            self.got.append(message)

        self.task = asyncio.create_task(forwarder(scope, receive, send))

    @property
    def text(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.got).replace(b": waiting\n\n", b"")


HOME = by_hash(session_of("", {}, b"{}", max_json_depth=64), [0, 1])  # of the client's request


def test_a_request_at_a_replica_that_ray_has_taken_away_goes_to_another() -> None:
    async def play() -> None:
        cluster = Writers({HOME: Writer(messages=None), 1 - HOME: Writer(messages=(START, event(1), LAST))})
        fleet = fleet_of(cluster)
        start_fleet(fleet)
        await until(lambda: fleet.num_ready == 2)
        client = Client(Forwarder(fleet))
        await until(lambda: bool(cluster.replicas[HOME].asked))
        del cluster.replicas[HOME]
        async with asyncio.timeout(10):
            await client.task
        assert client.text == b"data: 1\n\n"
        await fleet.end()

    asyncio.run(play())


def test_a_full_replica_is_asked_again_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "REFUSED_S", 0.1)

    async def play() -> None:
        full = Writer(messages=(FULL, LAST))
        first = Writer(messages=(START, event(1)))
        fleet = fleet_of(Writers({HOME: first, 1 - HOME: full}))

        def lose() -> None:
            first.slow_s = 60.0
            fleet._links[HOME].is_ready = False

        first.on_loss = lose
        start_fleet(fleet)
        await until(lambda: fleet.num_ready == 2)
        client = Client(Forwarder(fleet))
        await until(lambda: len(full.asked) > 2)
        full.messages = (START, event(2), LAST)
        await client.task
        assert client.text == b"data: 1\n\ndata: 2\n\n"
        assert any(message.get("body") == b": waiting\n\n" for message in client.got)
        assert 0 < full.asked[-1].max_s < full.asked[0].max_s < CLUSTER.server.max_request_s
        await fleet.end()

    asyncio.run(play())


@pytest.mark.parametrize("end", ["gone", "shutdown"])
def test_who_leaves_or_a_shutdown_is_noticed_between_two_replicas(end: str) -> None:
    async def play() -> None:
        writer = Writer(messages=(START, event(1)))
        fleet = fleet_of(Writers({0: writer}), replace(CLUSTER, num_replicas=1))

        def lose() -> None:
            writer.slow_s = 60.0
            fleet._links[0].is_ready = False

        writer.on_loss = lose
        start_fleet(fleet)
        await until(lambda: fleet.num_ready == 1)
        forwarder = Forwarder(fleet)
        client = Client(forwarder)
        await until(lambda: len(client.got) > 2)
        await until(lambda: b"waiting" in client.got[-1].get("body", b""))
        began = time.monotonic()
        if end == "gone":
            client.goes.set()
        else:
            forwarder.end_all()
        await client.task
        assert time.monotonic() - began < CLUSTER.server.max_request_s / 4
        assert (b"shutting_down" in client.text) == (end == "shutdown")
        await fleet.end()

    asyncio.run(play())


def test_replicas_whose_start_was_interrupted_are_stopped() -> None:
    async def play() -> None:
        cluster = Writers({}, join_s=0.5)
        fleet = fleet_of(cluster)
        start_fleet(fleet)
        await asyncio.sleep(0.1)
        await fleet.end()
        assert sorted(cluster.stopped) == [0, 1]

    asyncio.run(play())


def test_replicas_that_another_front_uses_stay_even_if_this_one_knows_none_yet() -> None:
    async def play() -> None:
        cluster = Writers({index: Writer({"other"}, slow_s=5.0) for index in range(2)})
        fleet = fleet_of(cluster)
        start_fleet(fleet)
        await until(lambda: len(fleet._links) == 2)
        assert fleet.num_ready == 0
        await fleet.end()
        assert cluster.stopped == []

    asyncio.run(play())


def test_a_front_goes_on_looking_where_ray_could_not_start_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "MORE_AFTER_S", -1.0)
    monkeypatch.setattr(fleet_module, "ASK_EVERY_S", 0.05)

    async def play() -> None:
        cluster = Writers({0: Writer()}, is_broken=True)
        fleet = fleet_of(cluster, replace(CLUSTER, num_replicas=1, max_replicas=3))
        start_fleet(fleet)
        await until(lambda: fleet.num_ready == 1)
        visits = [fleet.visit(str(number), on_lost=lambda: None) for number in range(4)]
        for visit in visits:
            visit.__enter__()
        await asyncio.sleep(0.3)
        cluster.replicas[5] = Writer()
        await until(lambda: 5 in fleet._links)
        for visit in visits:
            visit.__exit__(None, None, None)
        await fleet.end()

    asyncio.run(play())


def test_another_model_of_the_same_short_name_is_refused() -> None:
    async def play() -> None:
        ended: list[BaseException] = []
        fleet = fleet_of(Writers({0: Writer(target="/b/model")}), replace(CLUSTER, num_replicas=1))
        start_fleet(fleet, ended.append)
        await until(lambda: bool(ended))
        assert isinstance(ended[0], ForerunError)
        assert "runs /b/model, but this front was started for builtin" in str(ended[0])
        assert fleet.num_ready == 0
        await fleet.end()

    asyncio.run(play())
