"""The openai client, as programs use it."""

import asyncio
from typing import Any

import httpx
import openai
import pytest

from tests.server.serving import Served, served

CHAT: list[Any] = [{"role": "user", "content": "def f("}]
KEY = "a-key-of-more-than-sixteen"


def client_of(server: Served, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", http_client=httpx.Client(trust_env=False), **options
    )


def test_a_chat_whole_and_streamed(server: Served) -> None:
    with client_of(server) as client:
        whole = client.chat.completions.create(model="builtin", messages=CHAT, max_tokens=12, seed=1)
        assert whole.choices[0].finish_reason == "length"
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 12
        assert whole.usage.prompt_tokens_details is not None
        assert whole.usage.prompt_tokens_details.cached_tokens is not None
        stream = client.chat.completions.create(
            model="builtin", messages=CHAT, max_tokens=12, seed=1, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == whole.choices[0].message.content
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


def test_the_stream_helper(server: Served) -> None:
    with (
        client_of(server) as client,
        client.chat.completions.stream(model="builtin", messages=CHAT, max_completion_tokens=8) as stream,
    ):
        events = [event.type for event in stream]
        final = stream.current_completion_snapshot
    assert "content.delta" in events
    assert events[-1] == "content.done"
    assert final.choices[0].message.content


def test_completions_and_models(server: Served) -> None:
    with client_of(server) as client:
        answer = client.completions.create(model="builtin", prompt=["def f(", "class A"], max_tokens=4, n=2)
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
        assert [model.id for model in client.models.list()] == ["builtin"]
        assert client.models.retrieve("builtin").owned_by == "forerun"


def test_several_at_once_by_the_asynchronous_client(server: Served) -> None:
    async def ask() -> list[str | None]:
        http = httpx.AsyncClient(trust_env=False)
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", http_client=http) as client:
            asked = [
                client.chat.completions.create(model="builtin", messages=CHAT, max_tokens=6, temperature=1.0, seed=seed)
                for seed in (1, 2, 1, 2)
            ]
            return [answer.choices[0].message.content for answer in await asyncio.gather(*asked)]

    first, second, again, too = asyncio.run(ask())
    assert (first, second) == (again, too)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"model": "gpt-5"}, openai.NotFoundError),
        ({"temperature": 3}, openai.BadRequestError),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, openai.BadRequestError),
        ({"response_format": {"type": "json_object"}}, openai.BadRequestError),
    ],
)
def test_errors_become_the_clients_own(
    server: Served, changes: dict[str, Any], error: type[openai.APIStatusError]
) -> None:
    with client_of(server) as client, pytest.raises(error) as caught:
        client.chat.completions.create(**{"model": "builtin", "messages": CHAT, "max_tokens": 4, **changes})
    assert caught.value.code is not None
    assert caught.value.request_id == caught.value.body["request_id"]  # type: ignore[index]


def test_a_wrong_key_is_an_authentication_error() -> None:
    with served(api_keys=(KEY,)) as server:
        with client_of(server) as client, pytest.raises(openai.AuthenticationError):
            client.models.list()
        with client_of(server).with_options(api_key=KEY) as client:
            assert client.models.list().data
