"""What a front and a replica know of each other, without Ray between them."""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
from starlette.types import Message

import forerun
from forerun.cli.engine_loading import open_engine
from forerun.core.errors import RankLostError
from forerun.fleet import fleet as fleet_module
from forerun.fleet import head_node as head_module
from forerun.fleet import replica as module
from forerun.fleet.config import FleetConfig
from forerun.fleet.continuing import SENT, Sent, SentStep
from forerun.fleet.fleet import Fleet, Link
from forerun.fleet.forwarding import new_continuing
from forerun.fleet.replica import ForwardedState, Replica
from forerun.server.work.job import Mark
from tests.server.serving import CONFIG, ENGINE


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "machine_name", lambda: "here")


def with_replica(work: Callable[[Replica], Coroutine[Any, Any, None]], *, version: str = forerun.__version__) -> None:
    async def play() -> None:
        replica = Replica(
            CONFIG, partial(open_engine, ENGINE), target=ENGINE.target, drafter_name="draft_model", version=version,
            name="replica-0", share=0,
        )  # fmt: skip
        async with asyncio.timeout(60):
            await work(replica)
            await replica.end()

    asyncio.run(play())


def test_a_replica_refuses_the_front_that_started_it_with_another_version() -> None:
    async def work(replica: Replica) -> None:
        failure = (await replica.report("front", "0.0.1")).failure
        assert f"replica-0 on here has forerun {forerun.__version__}, and this front forerun 0.0.1" in str(failure)

    with_replica(work, version="0.0.1")


def test_a_replica_refuses_another_front_of_another_version_and_stays_ready() -> None:
    async def work(replica: Replica) -> None:
        refused = await replica.report("old", "0.0.1")
        assert not refused.is_ready
        assert "forerun 0.0.1" in str(refused.failure)
        report = await replica.report("front", forerun.__version__)
        assert report.is_ready
        assert (report.machine, report.failure) == ("here", None)
        assert await replica.leave("old") == 1
        assert await replica.leave("front") == 0

    with_replica(work)


def stream_of(front: str) -> tuple[dict[str, Any], ForwardedState, bytes]:
    """A long stream that a front asks for: scope, state and body."""
    scope = {
        "type": "http", "method": "POST", "path": "/v1/completions", "raw_path": b"", "query_string": b"",
        "root_path": "", "headers": [(b"content-type", b"application/json")],
    }  # fmt: skip
    state = ForwardedState(owner="", request_id="id", front=front, max_s=600.0)
    return scope, state, b'{"prompt": "def f(", "max_tokens": 4000, "ignore_eos": true, "stream": true}'


def test_the_requests_of_a_lost_front_end_and_count_for_others_before(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(replica: Replica) -> None:
        await replica.report("lost", forerun.__version__)
        got: list[Message] = []

        async def read() -> None:
            got.extend([message async for message in replica.answer(*stream_of("lost"))])

        reading = asyncio.create_task(read())
        await asyncio.sleep(0.2)
        assert (await replica.report("front", forerun.__version__)).num_others == 1
        monkeypatch.setattr(module, "LOST_AFTER_S", -1.0)
        await replica.report("front", forerun.__version__)
        with pytest.raises(RuntimeError, match="its front counts as lost"):  # should it come back
            await reading

    with_replica(work)


def test_only_a_stream_that_may_be_continued_has_records() -> None:
    async def work(replica: Replica) -> None:
        await replica.report("front", forerun.__version__)
        scope, state, _ = stream_of("front")
        body = b'{"prompt": "def f(", "max_tokens": 8, "ignore_eos": true, "stream": true}'

        async def records(state: ForwardedState) -> list[Sent]:
            return [item async for message in replica.answer(scope, state, body) for item in message.get(SENT, ())]

        assert await records(state) == []
        *sent, over = await records(replace(state, continuing=new_continuing()))
        assert over is Mark.OVER
        assert sum(len(item.token_ids) for item in sent if isinstance(item, SentStep)) == 8

    with_replica(work)


def test_a_lost_rank_ends_the_engine_and_no_answer_is_taken_for_complete() -> None:
    async def work(replica: Replica) -> None:
        await replica.report("front", forerun.__version__)
        engine = replica._service.engine
        stream = engine.stream

        def lose() -> None:
            raise RankLostError("rank 1 has ended")

        def losing(*args: Any, **settings: Any) -> Any:
            found = stream(*args, **settings)
            found._advance = lose
            return found

        engine.stream = losing  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="the engine has ended"):
            [message async for message in replica.answer(*stream_of("front"))]
        with pytest.raises(RuntimeError, match="the engine has ended"):  # so Ray starts another one
            await replica.check_health()

    with_replica(work)


def fleet_of(**machines: tuple[str, int]) -> Fleet:
    """A fleet of ready replicas, each on a machine with so many requests of other fronts."""
    unused = cast(Any, None)
    fleet = Fleet(FleetConfig(server=CONFIG), unused, ENGINE, drafter_name="none")
    fleet._folder.cleanup()
    for index, (name, num_others) in enumerate(machines.values()):
        link = fleet._links[index] = Link(unused)
        link.machine = name
        link.num_others = num_others
        link.is_ready = True
    return fleet


def visited(fleet: Fleet, but: Link | None = None) -> int:
    with fleet.visit("session", on_lost=lambda: None, but=but) as link:
        return next(index for index, each in fleet._links.items() if each is link)


def test_who_is_busy_with_requests_of_other_fronts_is_left_alone() -> None:
    assert visited(fleet_of(first=("a", 3), second=("b", 0), third=("c", 3))) == 1


def test_a_lost_replica_s_request_goes_to_another_machine_if_there_is_one() -> None:
    fleet = fleet_of(first=("a", 0), second=("a", 0), third=("b", 1))
    assert visited(fleet, fleet._links[0]) == 2
    fleet._links[2].is_ready = False
    assert visited(fleet, fleet._links[0]) == 1
    fleet._links[1].is_ready = False
    assert visited(fleet, fleet._links[0]) == 0


def test_a_machine_that_is_drained_takes_nothing_new_while_there_is_another() -> None:
    fleet = fleet_of(first=("a", 0), second=("b", 1))
    fleet._links[0].is_leaving = True
    assert visited(fleet) == 1
    fleet._links[1].is_ready = False
    assert visited(fleet) == 0


class SlowRay:
    """A cluster whose calls last until they are released, in place of Ray's."""

    def __init__(self) -> None:
        self.is_called = threading.Event()
        self.is_released = threading.Event()
        self.calls: list[str] = []

    def join(self) -> "SlowRay":
        return self

    def wait(self) -> dict[int, Any]:
        self.calls.append("begun")
        self.is_called.set()
        assert self.is_released.wait(60)
        self.calls.append("done")
        return {}

    find = wait

    def leave(self) -> None:
        self.calls.append("left")


def begun(ray: SlowRay, **replaced: Any) -> Fleet:
    """A fleet on this Ray that begins."""
    fleet = Fleet(FleetConfig(server=CONFIG), cast(Any, None), ENGINE, drafter_name="none")
    for name, work in {"_join": ray.join, "_leave": ray.leave, **replaced}.items():
        setattr(fleet, name, work)
    fleet.start(keep_signals=lambda: None, on_ready=lambda: None, on_end=lambda _error: None)
    return fleet


def test_ray_is_left_after_the_last_call_of_it() -> None:
    async def play() -> None:
        ray = SlowRay()
        fleet = begun(ray)
        await asyncio.to_thread(ray.is_called.wait, 60)
        ending = asyncio.create_task(fleet.end())
        await asyncio.sleep(0)
        ray.is_released.set()
        await ending
        assert ray.calls == ["begun", "done", "left"]
        assert not fleet.is_stuck
        fleet.clear()

    asyncio.run(play())


def test_a_server_ends_while_ray_starts() -> None:
    async def play() -> None:
        ray = SlowRay()
        fleet = begun(ray, _join=ray.wait)
        await asyncio.to_thread(ray.is_called.wait, 60)
        await fleet.end()
        assert (ray.calls, fleet.is_stuck) == (["begun"], True)
        fleet.clear()
        ray.is_released.set()

    asyncio.run(play())


def test_a_lost_head_node_is_named_and_ends_the_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in (("SILENT_S", 0.05), ("GONE_S", 0.2), ("ASK_EVERY_S", 0.01)):
        monkeypatch.setattr(head_module, name, value)
    monkeypatch.setattr(fleet_module, "LEAVE_S", 0.1)
    ray = SlowRay()
    errors = list[BaseException]()

    async def play() -> None:
        with socket.create_server(("127.0.0.1", 0)) as head:
            fleet = begun(ray)
            fleet._head = f"127.0.0.1:{head.getsockname()[1]}"
            fleet._on_end = errors.append
            while not ray.calls:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)  # longer than the time after which a lost one is told
            assert (errors, caplog.messages) == ([], [])
        while not errors:
            await asyncio.sleep(0.01)
        await fleet.end()  # a look-up never comes back
        assert fleet.is_stuck
        fleet.clear()
        ray.is_released.set()

    asyncio.run(play())
    assert "start it again, then this server" in str(errors[0])
    assert sum("replicas that run go on" in line for line in caplog.messages) == 1
