"""What goes wrong becomes the client's own exception of that kind, with or without a stream."""

import asyncio
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from forerun import NumericalError, SamplingParams
from tests.server.holding import LONG, SLOW, is_idle, send, until
from tests.server.openai_matrix.ways import CHAT, MODEL, Client, async_client_of, client_of
from tests.server.serving import Served, served

KEY = "a-key-of-more-than-sixteen"
ASKED: dict[str, Any] = {"model": MODEL, "messages": CHAT, "max_tokens": 4}
LONG_CHAT = {**ASKED, "max_tokens": 1500, "extra_body": {"ignore_eos": True}}
CLIENTS: tuple[Client, ...] = ("sync", "async")
WRONG: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 6},
    "top_p": {"top_p": 2},
    "n": {"n": 0},
    "max_tokens": {"max_tokens": -2},
    "seed": {"seed": 2**63},
    "stop": {"stop": ["a"] * 65},
    "logit_bias": {"logit_bias": {"999999": 1}},
    "presence_penalty": {"presence_penalty": 2.5},
    "top_logprobs": {"logprobs": True, "top_logprobs": 21},
    "messages": {"messages": []},
    "messages.0.role": {"messages": [{"content": "hi"}]},
    "tools.0": {"tools": [{"type": "function", "function": {}}]},
    "tool_choice": {"tool_choice": "required"},
    "response_format": {"response_format": {"type": "json_schema"}},
    "forerun.drafter": {"extra_body": {"forerun": {"drafter": "wizard"}}},
}


def ask(server: Served, client: Client, asked: dict[str, Any], **options: Any) -> Any:
    """The answer, or the client's exception; all chunks of a stream."""

    async def ask_async() -> Any:
        async with async_client_of(server, **options) as made:
            given = await made.chat.completions.create(**asked)
            return [chunk async for chunk in given] if asked.get("stream") else given

    if client == "async":
        return asyncio.run(ask_async())
    with client_of(server, **options) as made:
        given = made.chat.completions.create(**asked)
        return list(given) if asked.get("stream") else given


@pytest.fixture(scope="module")
def slow() -> Iterator[Served]:
    """A server with keys whose engine takes its time, where only one request may wait."""
    with served(SLOW, api_keys=(KEY,), is_demo=True, max_queued=1) as running:
        yield running


@pytest.fixture(scope="module")
def named() -> Iterator[Served]:
    """A server that demands the model's name."""
    with served(requires_model_name=True) as running:
        yield running


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("param", WRONG)
def test_a_wrong_field_is_a_bad_request(server: Served, param: str, client: Client, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(server, client, {**ASKED, **WRONG[param], "stream": stream})
    error = caught.value
    assert (error.param or param) == param  # faults of a list's items or a union have no plain name
    assert error.code is not None
    assert error.type == "invalid_request_error"
    assert error.body is not None
    assert error.request_id == error.body["request_id"]  # type: ignore[index]


@pytest.mark.parametrize("client", CLIENTS)
def test_another_model_is_not_found_if_names_are_required(named: Served, client: Client) -> None:
    assert ask(named, client, ASKED).model == MODEL
    with pytest.raises(openai.NotFoundError) as caught:
        ask(named, client, {**ASKED, "model": "gpt-5"})
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_what_is_not_there_or_not_allowed_has_its_class(slow: Served) -> None:
    with client_of(slow, api_key=KEY) as client:
        for path, error in (
            ("/embeddings", openai.NotFoundError),
            ("/models", openai.APIStatusError),  # 405, for which the client has no class of its own
            ("/forerun/kill-drafter", openai.ConflictError),
        ):
            with pytest.raises(error) as caught:
                client.post(path, cast_to=object, body={})
            assert caught.value.body is not None
            assert caught.value.request_id is not None


@pytest.mark.parametrize("client", CLIENTS)
def test_keys_and_hosts_have_their_classes(slow: Served, client: Client) -> None:
    with pytest.raises(openai.AuthenticationError):
        ask(slow, client, ASKED, api_key=f"{KEY}x")
    with pytest.raises(openai.PermissionDeniedError):
        ask(slow, client, ASKED, api_key=KEY, default_headers={"host": "evil.example"})
    assert ask(slow, client, ASKED, api_key=KEY).choices


@pytest.fixture
def crowded(slow: Served) -> Iterator[list[socket.socket]]:
    """The slow server while it writes a long text and another request waits, which is all that may wait."""
    with send(slow, LONG, key=KEY) as running:
        until(lambda: slow.service.thread.running is not None)
        with send(slow, LONG, key=KEY) as waiting:
            until(lambda: len(slow.service.queue) == 1)
            yield [running, waiting]
    until(lambda: is_idle(slow))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_full_queue_is_a_rate_limit(slow: Served, crowded: list[socket.socket], client: Client, stream: bool) -> None:
    with pytest.raises(openai.RateLimitError) as caught:
        ask(slow, client, {**ASKED, "stream": stream}, api_key=KEY)
    assert caught.value.code == "rate_limit_exceeded"
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60


def test_the_client_comes_back_when_it_was_told_to(slow: Served, crowded: list[socket.socket]) -> None:
    with client_of(slow, api_key=KEY, max_retries=2) as client:
        retries: list[float] = []
        client._client.event_hooks["response"] = [lambda response: leave(response, crowded, retries)]
        began = time.monotonic()
        raw = client.chat.completions.with_raw_response.create(**ASKED)
    assert raw.retries_taken == 1
    assert time.monotonic() - began >= retries[0] >= 1


def leave(response: httpx.Response, held: list[socket.socket], retries: list[float]) -> None:
    """Give up the requests that crowd the server, once one was refused for them."""
    if response.status_code == 429:
        retries.append(float(response.headers["retry-after"]))
        for sock in held:
            sock.close()


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_that_loses_patience_frees_the_engine(slow: Served, client: Client) -> None:
    with pytest.raises(openai.APITimeoutError):
        ask(slow, client, {**LONG_CHAT, "timeout": 0.3}, api_key=KEY)
    until(lambda: is_idle(slow))


def test_a_stream_that_is_closed_frees_the_engine(slow: Served) -> None:
    async def close_early() -> None:
        async with async_client_of(slow, api_key=KEY) as client:
            stream = await client.chat.completions.create(**LONG_CHAT, stream=True)
            await anext(aiter(stream))
            await stream.close()
            while not is_idle(slow):
                await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(close_early(), 30))
    with client_of(slow, api_key=KEY) as client, client.chat.completions.create(**LONG_CHAT, stream=True) as stream:
        assert next(iter(stream)).choices
        stream.close()
        until(lambda: is_idle(slow))


@pytest.mark.parametrize("client", CLIENTS)
def test_a_stream_that_fails_midway_is_an_error_and_not_an_end(client: Client) -> None:
    with served(SLOW, max_request_s=0.4) as server:
        with pytest.raises(openai.APIError) as caught:
            ask(server, client, {**LONG_CHAT, "stream": True})
        assert not isinstance(caught.value, openai.APIStatusError)  # the stream had begun, with status 200
        assert caught.value.code == "deadline_exceeded"
        with pytest.raises(openai.InternalServerError) as late:
            ask(server, client, LONG_CHAT, max_retries=2)
        assert late.value.status_code == 504
        assert late.value.response.headers["x-should-retry"] == "false"


def test_a_failure_is_an_internal_error_and_is_not_tried_again() -> None:
    with served() as server:
        engine = server.service.engine
        tries = 0

        def fail(params: SamplingParams) -> float:
            nonlocal tries
            tries += params.max_new_tokens == ASKED["max_tokens"]
            raise NumericalError("of the test")

        engine.near_tie = fail  # type: ignore[method-assign]
        for stream in (False, True):
            with pytest.raises(openai.InternalServerError) as caught:
                ask(server, "sync", {**ASKED, "stream": stream}, max_retries=2)
            assert caught.value.code == "nothing_to_choose"
        assert tries == 2


def test_who_asks_while_the_model_is_loaded_is_answered_in_the_end() -> None:
    with served(waits=False) as server:
        assert ask(server, "async", ASKED, max_retries=20).choices


def test_a_server_that_is_not_there_is_a_connection_error() -> None:
    with served() as server:
        pass
    with pytest.raises(openai.APIConnectionError):
        ask(server, "sync", ASKED)
