"""Answers on their way to a client: whole, cut short, and given up."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from starlette.types import Message

from forerun.fleet.continuing import SENT, SentStep
from forerun.fleet.forwarding import new_continuing
from forerun.fleet.relay import AnswerEnd, Relay, ReplicaLostError, ReplicaSilentError
from forerun.server.protocols.errors import ApiError
from forerun.server.work.job import Mark

START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
EVENT = {"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True}
LAST = {"type": "http.response.body", "body": b""}


class Client:
    """What was sent, and when the reader goes away."""

    def __init__(self) -> None:
        self.got: list[Message] = []
        self.goes = asyncio.Event()
        self.reads = asyncio.Event()
        self.num_aborted = 0

    async def receive(self) -> Message:
        await self.goes.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await self.reads.wait()
        self.got.append(message)

    def abort(self) -> None:
        self.num_aborted += 1
        self.goes.set()
        self.reads.set()  # as a connection that was ended: what is sent is dropped


async def answer(*messages: Message, then: Callable[[], Any] | None = None) -> AsyncIterator[Message]:
    for message in messages:
        yield message
    if then is not None:
        then()
        await asyncio.Event().wait()


def continuable(client: Client) -> Relay:
    return Relay(
        client.send, path="/v1/completions", ping_s=9.0, max_unread=9, abort=client.abort, continuing=new_continuing()
    )


def played(*messages: Message, end: str = "", max_unread: int = 100, reads: bool = True) -> tuple[Client, bool]:
    """The client after an answer, and whether the rest of it was given up.

    Args:
        end: a method of the relay, or of the client's event, with which it ends.
    """

    async def play() -> tuple[Client, bool]:
        client = Client()
        relay = Relay(client.send, path="/v1/completions", ping_s=9.0, max_unread=max_unread, abort=client.abort)
        if reads:
            client.reads.set()
        ends: dict[str, Callable[[], Any]] = {
            "lost": relay.lose, "gone": client.goes.set, "shutdown": lambda: relay.put(AnswerEnd.SHUTDOWN),
        }  # fmt: skip
        source = answer(*messages, then=ends.get(end))
        async with asyncio.timeout(10):
            await relay.run(source, client.receive, "id")
        return client, source.ag_frame is None  # type: ignore[attr-defined]

    return asyncio.run(play())


def test_an_answer_is_handed_back_as_it_is() -> None:
    client, is_closed = played(START, EVENT, LAST)
    assert client.got == [START, EVENT, LAST]
    assert is_closed


def test_who_leaves_ends_the_answer() -> None:
    client, is_closed = played(START, EVENT, end="gone")
    assert client.got == [START, EVENT]
    assert is_closed


@pytest.mark.parametrize(("end", "code"), [("lost", "replica_lost"), ("shutdown", "shutting_down")])
def test_a_stream_that_was_begun_ends_with_an_error(end: str, code: str) -> None:
    client, _ = played(START, EVENT, end=end)
    assert client.got[:2] == [START, EVENT]
    assert code.encode() in client.got[2]["body"]
    assert b'"id"' in client.got[2]["body"]


def test_what_was_not_begun_may_be_asked_of_another_replica_or_is_refused() -> None:
    with pytest.raises(ReplicaLostError):
        played(end="lost")
    with pytest.raises(ApiError, match="shutting down"):
        played(end="shutdown")


def test_another_replica_goes_on_with_a_stream_that_may_be_continued() -> None:
    step = SentStep(0, (1,), 1)
    rest = SentStep(0, (2,), 1)
    refused = {"type": "http.response.start", "status": 429, "headers": []}

    async def play() -> Client:
        client = Client()
        client.reads.set()
        relay = continuable(client)
        for number, messages in enumerate([(START, {**EVENT, SENT: [step]}), (refused,)]):
            with pytest.raises(ReplicaSilentError if number == 0 else ReplicaLostError):
                await relay.run(answer(*messages, then=relay.lose), client.receive, "id")
        assert relay.continuing is not None
        assert relay.continuing.sent == (step,)
        await relay.run(answer(START, {**EVENT, SENT: [rest]}, LAST), client.receive, "id")
        assert relay.continuing.sent == (step, rest)
        return client

    assert asyncio.run(play()).got == [START, EVENT, EVENT, LAST]


def test_a_stream_that_was_sent_whole_ends_whole() -> None:
    async def play() -> Client:
        client = Client()
        client.reads.set()
        relay = continuable(client)
        messages = answer(START, {**EVENT, SENT: [Mark.OVER]}, then=relay.lose)
        await relay.run(messages, client.receive, "id")
        return client

    assert asyncio.run(play()).got == [START, EVENT, LAST]


def test_an_answer_that_is_no_stream_is_cut_short() -> None:
    start = {**START, "headers": [(b"content-type", b"application/json")]}
    assert played(start, end="lost")[0].got == [start]


def test_a_reader_that_does_not_read_is_given_up() -> None:
    client, is_closed = played(START, *[EVENT] * 20, max_unread=8, reads=False, end="never")
    assert client.num_aborted > 0
    assert is_closed
