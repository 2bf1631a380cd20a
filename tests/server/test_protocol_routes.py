"""What agents ask beside answers: counts, keys in either header, cached tokens, and errors in each protocol's form."""

import json
from typing import Any

import httpx
import pytest

from tests.server.calling import SCHEMAS
from tests.server.serving import served

USER = {"messages": [{"role": "user", "content": "Tell me of the sea. " * 20}]}
TOOL = {"name": "weather", "description": "The weather.", "input_schema": SCHEMAS["weather"]}
KEY = "a-key-of-more-than-sixteen"
CACHED = {
    "/v1/chat/completions": ({**USER, "max_tokens": 2}, lambda usage: usage["prompt_tokens_details"]["cached_tokens"]),
    "/v1/messages": ({**USER, "max_tokens": 2}, lambda usage: usage["cache_read_input_tokens"]),
    "/v1/responses": (
        {"input": "Tell me of the sky. " * 20, "max_output_tokens": 2},
        lambda usage: usage["input_tokens_details"]["cached_tokens"],
    ),
}


@pytest.mark.parametrize("fields", [{}, {"system": "Be kind."}, {"tools": [TOOL]}])
def test_counted_tokens_are_those_of_the_answer(client: httpx.Client, fields: dict[str, Any]) -> None:
    counted = client.post("/v1/messages/count_tokens", json={**USER, **fields}).json()
    usage = client.post("/v1/messages", json={**USER, **fields, "max_tokens": 1}).json()["usage"]
    assert counted == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


@pytest.mark.parametrize("path", [*CACHED])
def test_cached_tokens_are_told(client: httpx.Client, path: str) -> None:
    body, cached_of = CACHED[path]
    body = json.loads(json.dumps(body).replace("Tell", f"Of {path} tell"))  # a text of its own
    first, second = (client.post(path, json=body).json()["usage"] for _ in range(2))
    assert cached_of(first) < cached_of(second) == usage_total(second) - 1


def usage_total(usage: dict[str, Any]) -> int:
    """Tokens of the prompt."""
    if "prompt_tokens" in usage:
        return int(usage["prompt_tokens"])
    return int(usage["input_tokens"] + usage.get("cache_read_input_tokens", 0))


def test_a_key_may_come_in_either_header() -> None:
    with served(api_keys=(KEY,)) as server:
        for headers, status in (
            ({"x-api-key": KEY}, 200), ({"authorization": f"Bearer {KEY}"}, 200), ({"x-api-key": KEY + "x"}, 401),
            ({"authorization": KEY}, 401), ({}, 401), ({"x-api-key": "", "authorization": f"Bearer {KEY}"}, 200),
        ):  # fmt: skip
            with server.client(headers=headers) as client:
                answer = client.post("/v1/messages", json={**USER, "max_tokens": 1})
                assert answer.status_code == status, headers
                if status == 401:
                    assert answer.json()["error"]["type"] == "authentication_error"


def test_the_root_answers_head(client: httpx.Client) -> None:
    assert client.head("/").status_code == 200


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize("content", [b"{", b'{"messages": []}', b'{"messages": 1}', b"[]"])
def test_errors_in_anthropics_form(client: httpx.Client, path: str, content: bytes) -> None:
    answer = client.post(path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    body = answer.json()
    assert set(body) == {"type", "error", "request_id"}
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    assert body["request_id"] == answer.headers["x-request-id"]


def test_a_prompt_that_is_too_long_is_told_in_each_protocols_words(client: httpx.Client) -> None:
    text = "word " * 4000
    told = client.post("/v1/messages", json={"messages": [{"role": "user", "content": text}], "max_tokens": 1}).json()
    assert "prompt is too long: " in told["error"]["message"]
    for path, param, value in (
        ("/v1/responses", "input", text),
        ("/v1/completions", "prompt", text),
        ("/v1/chat/completions", "messages", [{"role": "user", "content": text}]),
    ):
        error = client.post(path, json={param: value}).json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", param)
