"""A stream that is cut anywhere and continued by another run of the same request reads as if nothing had happened."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from starlette.types import ASGIApp, Message

from forerun import Engine
from forerun.core.steps import DecodeStep, FinishReason, Generation
from forerun.fleet.continuing import SENT, ContinuedAnswer, Continuing, SameText, SentStep
from forerun.fleet.forwarding import new_continuing
from forerun.fleet.replica import HOOK, hook_of
from forerun.server.app import make_routes
from forerun.server.protocols.errors import ApiError
from forerun.server.request_state import STATE, RequestState
from forerun.server.work.job import Event
from forerun.server.work.served_models import ServedModels
from forerun.server.work.service import Service
from tests.server.calling import WAYS
from tests.server.protocols.strict_clients import Read, events_of
from tests.server.protocols.written import OF_ALL, STATS
from tests.server.serving import CONFIG, ENGINE

NUM_CUTS = 6
PLAIN = {"forerun": {"drafter": "none"}}  # another way to the same text, with other rounds
CHAT = {"messages": [{"role": "user", "content": "def f("}], "max_tokens": 24, "temperature": 0.9, "stream": True}


@asynccontextmanager
async def routes() -> AsyncIterator[ASGIApp]:
    """The routes of one engine, without a socket."""
    service = Service(CONFIG, lambda: Engine(ENGINE), target=ENGINE.target)
    service.start()
    await service.opened()
    try:
        yield make_routes(ServedModels([service]), hook_for=lambda request: hook_of(request.scope))
    finally:
        await service.end()


async def answer(app: ASGIApp, path: str, body: dict[str, Any], continuing: Continuing) -> list[Message]:
    """The messages with the events of an answer."""
    asked = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
    got = list[Message]()

    async def receive() -> Message:
        if not asked:
            await asyncio.Event().wait()
        return asked.pop()

    async def send(message: Message) -> None:
        got.append({**message, SENT: hook.take_records()})

    hook = ContinuedAnswer(continuing, max_s=60.0, process="replica")
    headers = [(b"content-type", b"application/json")]
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "headers": headers, STATE: RequestState(owner="", request_id="id"), HOOK: hook,
    }  # fmt: skip
    await app(scope, receive, send)
    assert got[0]["status"] == 200, got
    return got[1:-1]


async def cut_everywhere(path: str, body: dict[str, Any], other: dict[str, Any]) -> tuple[bytes, list[bytes]]:
    """A whole stream, and those that were cut behind some of its messages, but not the last, and continued."""
    async with routes() as app:
        begun = new_continuing()
        whole = await answer(app, path, body, begun)
        again = []
        for number in sorted({round(share * (len(whole) - 1) / NUM_CUTS) for share in range(NUM_CUTS + 1)}):
            sent = tuple(item for message in whole[:number] for item in message[SENT])
            rest = await answer(app, path, {**body, **other}, replace(begun, sent=sent))
            again.append(b"".join(message["body"] for message in (*whole[:number], *rest)))
        return b"".join(message["body"] for message in whole), again


@pytest.mark.parametrize("name", WAYS)
def test_calls_that_are_continued_anywhere_are_the_same_in_every_protocol(name: str) -> None:
    way = WAYS[name]
    asked = {**way.body(["weather", "end-it"], "required", True, 200), "stream": True}
    whole, again = asyncio.run(cut_everywhere(way.path, asked, {}))

    def parts(stream: bytes) -> Read:
        return replace(way.read(stream), usage={})

    assert parts(whole).calls
    assert len(again) > 3
    assert all(parts(stream) == parts(whole) for stream in again)


def test_sampled_texts_without_a_seed_are_continued_with_other_rounds() -> None:
    path = "/v1/chat/completions"
    body = {**CHAT, "n": 2, "logprobs": True}

    def parts(stream: bytes) -> dict[int, Any]:
        found: dict[int, Any] = {}
        for _, data in events_of(stream)[:-1]:
            for choice in json.loads(data)["choices"]:
                own = found.setdefault(choice["index"], ["", [], None])
                own[0] += choice["delta"].get("content", "")
                own[1] += [entry["token"] for entry in (choice["logprobs"] or {}).get("content", ())]
                own[2] = choice["finish_reason"] or own[2]
        return found

    whole, again = asyncio.run(cut_everywhere(path, body, PLAIN))
    assert len(again) > 4
    assert parts(whole)[0] != parts(whole)[1]
    assert all(parts(stream) == parts(whole) for stream in again)


def step(*token_ids: int, text: str, finish: FinishReason | None = None) -> DecodeStep:
    return DecodeStep(token_ids=token_ids, text=text, finish=finish, stats=STATS)


def given_again(sent: list[Any], *written: Event) -> list[Event]:
    async def events() -> AsyncIterator[Event]:
        for event in written:
            yield event

    async def play() -> list[Event]:
        return [event async for event in SameText(sent).events(events())]

    return asyncio.run(play())


def test_what_was_sent_is_cut_into_the_same_pieces_again() -> None:
    sent = [SentStep(0, (1,), 1), SentStep(0, (2, 3), 0), SentStep(0, (4,), 3)]
    written = [(0, step(1, 2, text="a")), (0, step(3, text="")), (0, step(4, 5, text="bcdef"))]
    given = given_again(sent, *(Event(*each) for each in written))
    assert [(event.body.token_ids, event.body.text) for event in given if isinstance(event.body, DecodeStep)] == [
        ((1,), "a"), ((2, 3), ""), ((4,), "bcd"), ((5,), "ef"),
    ]  # fmt: skip


def test_another_text_is_an_error() -> None:
    sent = [SentStep(0, (1,), 1), SentStep(0, (2,), 1)]
    assert isinstance(given_again(sent, Event(0, step(1, 9, text="xy")))[-1].body, ApiError)
    end = Generation(text="x", token_ids=(1,), finish_reason=FinishReason.STOP, seed=0, stats=OF_ALL)
    shorter = given_again(
        sent, Event(0, step(1, text="x", finish=FinishReason.STOP)), Event(0, end), Event(1, step(5, text="z"))
    )
    assert isinstance(shorter[-1].body, ApiError)


def test_equal_prompts_without_a_seed_have_texts_of_their_own() -> None:
    body = {"prompt": ["def f("] * 2, "max_tokens": 24, "temperature": 0.9, "stream": True}

    def texts(stream: bytes) -> dict[int, str]:
        found = {0: "", 1: ""}
        for _, data in events_of(stream)[:-1]:
            for choice in json.loads(data)["choices"]:
                found[choice["index"]] += choice["text"]
        return found

    whole, again = asyncio.run(cut_everywhere("/v1/completions", body, PLAIN))
    assert texts(whole)[0] != texts(whole)[1]
    assert all(texts(stream) == texts(whole) for stream in again)


def test_what_was_sent_is_not_counted_as_a_prediction_of_the_client() -> None:
    asked = {
        **CHAT, "temperature": 0, "seed": 1, "prediction": {"type": "content", "content": "xyz" * 40},
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    _, again = asyncio.run(cut_everywhere("/v1/chat/completions", asked, {}))
    details = json.loads(events_of(again[-2])[-2][1])["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == 0
