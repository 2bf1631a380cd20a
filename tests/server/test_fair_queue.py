"""Who waits is served in an order that no key can bend, and within bounds."""

import asyncio
from collections.abc import Callable

import pytest

from forerun import SamplingParams
from forerun.server.config import ServerConfig
from forerun.server.protocols.errors import ApiError
from forerun.server.work.engine_call import EngineCall, Prompt
from forerun.server.work.fair_queue import FairQueue
from forerun.server.work.job import EarlyEnd, Job


def in_loop(work: Callable[[], None]) -> None:
    """Jobs belong to an event loop."""

    async def call() -> None:
        work()

    asyncio.run(call())


def job(owner: str, num_tokens: int = 10) -> Job:
    params = SamplingParams(max_new_tokens=num_tokens - 1)
    return Job([EngineCall(prompt=Prompt(ids=[0]), params=params)], owner=owner, max_unread=8)


def order_of(queue: FairQueue) -> str:
    """The owners, in the order in which they are served."""
    return "".join(taken.owner for taken in iter(lambda: queue.take(0.0), None))


def test_keys_take_turns_and_a_key_keeps_its_own_order() -> None:
    def check() -> None:
        queue = FairQueue(ServerConfig())
        jobs = [job("a") for _ in range(4)] + [job("b") for _ in range(2)]
        for each in jobs:
            queue.put(each)
        taken = [queue.take(0.0) for _ in range(6)]
        assert "".join(each.owner for each in taken if each) == "ababaa"
        assert [each for each in taken if each and each.owner == "a"] == jobs[:4]

    in_loop(check)


def test_a_key_with_long_requests_gets_fewer_turns() -> None:
    def check() -> None:
        queue = FairQueue(ServerConfig())
        for _ in range(3):
            queue.put(job("a", 100))
        for _ in range(6):
            queue.put(job("b", 20))
        assert order_of(queue) == "abbbbbaba"

    in_loop(check)


def test_a_key_that_was_idle_has_saved_up_no_turns() -> None:
    def check() -> None:
        queue = FairQueue(ServerConfig())
        for _ in range(6):
            queue.put(job("a"))
        assert [queue.take(0.0) is not None for _ in range(3)] == [True] * 3
        for _ in range(3):
            queue.put(job("b"))
        assert order_of(queue) == "bababa"

    in_loop(check)


@pytest.mark.parametrize(
    ("limits", "owners", "num_tokens"),
    [
        ({"max_queued": 3}, "abcd", 10),
        ({"max_queued_per_key": 2}, "aaa", 10),
        ({"max_queued_tokens": 250}, "abc", 100),
        ({"max_queued_tokens": 300}, "aa", 100),
    ],
)
def test_what_is_too_much_is_refused(limits: dict[str, int], owners: str, num_tokens: int) -> None:
    def check() -> None:
        queue = FairQueue(ServerConfig(**limits))  # type: ignore[arg-type]
        *fine, last = owners
        for owner in fine:
            queue.put(job(owner, num_tokens))
        with pytest.raises(ApiError) as caught:
            queue.put(job(last, num_tokens))
        assert caught.value.status == 429
        assert caught.value.retry_after_s is not None
        assert len(queue) == len(fine)
        queue.put(Job(job(last).calls, owner=last, max_unread=8, is_admitted=True))
        assert len(queue) == len(owners)  # an answer that was begun elsewhere

    in_loop(check)


def test_the_tokens_allow_as_many_requests_of_an_agents_context_as_the_numbers_do() -> None:
    """Agents ask for as many new tokens as fit, and those without a key are one client."""

    def check() -> None:
        config = ServerConfig()
        queue = FairQueue(config)
        for _ in range(config.max_queued_per_key):
            queue.put(job("a", 32_768))
        assert len(queue) == config.max_queued_per_key

    in_loop(check)


def test_where_nothing_has_room_it_is_known_without_a_job() -> None:
    def check() -> None:
        queue = FairQueue(ServerConfig(max_queued_per_key=1, max_queued=2))
        queue.require_room("a")
        queue.put(job("a"))
        queue.require_room("b")
        with pytest.raises(ApiError):
            queue.require_room("a")
        queue.put(job("b"))
        with pytest.raises(ApiError):
            queue.require_room("c")

    in_loop(check)


def test_one_request_alone_is_taken_however_long() -> None:
    in_loop(lambda: FairQueue(ServerConfig(max_queued_tokens=10)).put(job("a", 1000)))


def test_a_job_that_ended_leaves_and_makes_room() -> None:
    def check() -> None:
        queue = FairQueue(ServerConfig(max_queued=1))
        waiting = job("a")
        waiting.on_over = lambda: queue.remove(waiting)
        queue.put(waiting)
        waiting.end(EarlyEnd.DISCONNECTED)
        waiting.end(EarlyEnd.DEADLINE)
        assert waiting.early_end is EarlyEnd.DISCONNECTED
        assert len(queue) == 0
        queue.put(job("b"))
        assert order_of(queue) == "b"

    in_loop(check)
