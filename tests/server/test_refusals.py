"""What the server does not answer, and how it says so."""

import json
import re
import socket
from typing import Any

import httpx
import pytest

from tests.server.serving import Served, served

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
TELLING = re.compile(r'Traceback|File "|/[a-z]+/[a-z]+/|0x[0-9a-f]{6,}|\.py\b')
KEY = "a-key-of-more-than-sixteen"


def refused(answer: httpx.Response, status: int, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert TELLING.search(answer.text) is None
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code", "request_id"}
    assert error["request_id"] == answer.headers["x-request-id"]
    if code is not None:
        assert error["code"] == code
    if param is not None:
        assert error["param"] == param
    return error


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"temperature": "1"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"stop": [1]}, "stop.0"),
        ({"stop": ["a"] * 65}, None),
        ({"logit_bias": {"x": 1}}, None),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"seed": 2**63}, "seed"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "hi"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, None),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages.0.content"),
        ({"tools": [{"type": "function"}]}, "tools.0"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"mirostat": 2}, "mirostat"),
        ({"grammar": 'root ::= "a"'}, "grammar"),
        ({"guided_choice": ["a"], "guided_regex": "b"}, "guided_choice"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": 1}}, "structured_outputs.regex"),
    ],
)
def test_a_wrong_field_is_named(client: httpx.Client, changes: dict[str, Any], param: str | None) -> None:
    refused(client.post("/v1/chat/completions", json={**CHAT, **changes}), 400, param=param)


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}, "image parts"),
        ({"type": "input_image", "image_url": "x"}, "image parts"),
        ({"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}, "audio parts"),
        ({"type": "file", "file": {"file_id": "x"}}, "file parts"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
def test_a_last_message_of_parts_that_are_no_text_is_refused_for_that(
    client: httpx.Client, path: str, part: dict[str, Any], named: str
) -> None:
    said = {"role": "user", "content": [{"type": "text", "text": " "}, part]}
    answer = client.post(path, json={"messages": [*CHAT["messages"], said]})  # type: ignore[misc]
    error = refused(answer, 400, "unsupported_parameter", "messages.1.content")
    assert f"{named} are not supported: this model reads text only" in error["message"]
    answered = {"role": "assistant", "content": [{"type": "text", "text": "I read text only."}, {"type": "thought"}]}
    for messages in ([said, answered, *CHAT["messages"]], [{**said, "content": [{"type": "text", "text": "?"}, part]}]):  # type: ignore[misc]
        answer = client.post(path, json={"messages": messages, "max_tokens": 1})
        assert answer.status_code == 200, answer.text
        names = [f"messages.content.{part['type']}", *(["messages.content.thought"] if len(messages) > 1 else [])]
        assert path == "/tokenize" or answer.headers["x-forerun-ignored"] == ",".join(names)


def test_an_image_that_an_agent_sends_after_a_tools_result_is_noted(client: httpx.Client) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    turns = [*CHAT["messages"], {"role": "assistant", "tool_calls": [call]}]  # type: ignore[misc]
    result = {"role": "tool", "tool_call_id": "a", "content": "seen"}
    assert client.post("/v1/chat/completions", json={"messages": [*turns, result, image]}).status_code == 200
    items = [
        {"type": "function_call", "call_id": "a", "name": "read", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "seen"},
        {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]},
    ]
    assert client.post("/v1/responses", json={"input": items, "max_output_tokens": 16}).status_code == 200
    refused(client.post("/v1/responses", json={"input": items[2:]}), 400, "unsupported_parameter", "input.0.content")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"ok": "ä"}, '{"ok": "ä"}'), ([1, {"a": None}], '[1, {"a": null}]'), (5, "5"), (None, ""), ([], ""),
        ([{"type": "text", "text": "seen"}, {"type": "image_url", "image_url": {"url": "x"}}],
         "seen\n[an image that this model cannot see]"),
        ([{"type": "found", "rows": 3}], '{"type": "found", "rows": 3}'),
    ],
)  # fmt: skip
def test_whatever_a_tool_gave_is_in_the_prompt(client: httpx.Client, content: Any, expected: str) -> None:
    calls: list[dict[str, Any]] = [
        {"id": None, "function": {"name": "", "arguments": {"a": 1}}}, {"function": {"name": None, "arguments": [1]}},
        {"type": "custom", "custom": {"name": "patch", "input": "x"}},
    ]  # fmt: skip
    results = [{"role": "tool", "tool_call_id": None, "content": content} for _ in calls]
    turns = [*CHAT["messages"], {"role": "assistant", "content": None, "tool_calls": calls}, *results]  # type: ignore[misc]
    answer = client.post("/apply-template", json={"messages": turns})
    assert answer.status_code == 200, answer.text
    prompt = answer.json()["prompt"]
    assert prompt.count(f"<tool_response>\n{expected}\n</tool_response>") == 3
    assert '"patch", "arguments": {"input": "x"}' in prompt


@pytest.mark.parametrize(
    "changes",
    [
        {"tools": []},
        {"tools": None},
        {"tool_choice": "auto"},
        {"response_format": {"type": "text"}},
        {"top_k": -1},
        {"temperature": 1e-9},
        {"stop": None},
        {"stop": ["", "never there", ""]},
        {"stop": ""},
        {"max_tokens": -1, "max_completion_tokens": 4},
        {"max_tokens": None, "n_predict": 4},
        {"tools": [{"type": "custom", "name": "x"}, {"type": "web_search"}]},
        {"tool_choice": "none"},
        {"mirostat": 0, "typical_p": 1.0, "xtc_probability": 0, "dry_multiplier": 0.0, "tfs_z": 1, "top_n_sigma": -1},
        {"structured_outputs": None},
        {"structured_outputs": {}},
        {"messages": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}]},
        {"messages": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "a"}]}, CHAT["messages"][0]]},
        {"n": 1, "user": "me", "stream": False},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "x"}]},
    ],
)
def test_neutral_values_are_fine(client: httpx.Client, changes: dict[str, Any]) -> None:
    assert client.post("/v1/chat/completions", json={**CHAT, **changes}).status_code == 200


def test_fields_that_nobody_reads_are_named(client: httpx.Client) -> None:
    answer = client.post("/v1/chat/completions", json={**CHAT, "store": True, "reasoning_effort": "low", "ü": 1})
    assert answer.headers["x-forerun-ignored"] == "store,reasoning_effort"
    asked = {**CHAT, "chat_template_kwargs": {"enable_thinking": True}, "stream": True}
    assert client.post("/v1/chat/completions", json=asked).headers["x-forerun-ignored"] == "enable_thinking"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b'{"messages": NaN}',
        b'{"temperature": -Infinity}',
        b'{"n": 1, "n": 1}',
        b'{"seed": 99999999999999999999999}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"\\udfff": 1}',
        b'{"x": ' + b"[" * 100 + b"]" * 100 + b"}",
        b'{"x": ' + b"[" * 100_000,
        b'{"x": 1e999}',
    ],
)
def test_what_is_no_strict_json_is_refused(client: httpx.Client, body: bytes) -> None:
    answer = client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    refused(answer, 400)


def test_brackets_in_texts_are_no_depth(client: httpx.Client) -> None:
    asked = {**CHAT, "messages": [{"role": "user", "content": '[{"\\' * 60}]}
    assert client.post("/v1/chat/completions", json=asked).status_code == 200


def test_what_is_not_there(client: httpx.Client) -> None:
    refused(client.post("/nothing", json=CHAT), 404, "not_found")
    assert client.get("/page/../app.py").json()["error"]["message"].startswith("no route GET /app.py here")
    refused(client.get("/page/%2e%2e/app.py"), 404)
    answer = client.get("/v1/chat/completions")
    refused(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"
    refused(client.post("/v1/forerun/kill-drafter"), 404)


@pytest.mark.parametrize(
    ("method", "path", "instead"),
    [
        ("POST", "/v1/conversations", "chat is POST /v1/chat/completions"),
        ("POST", "/api/chat", "chat is POST /v1/chat/completions"),
        ("POST", "/api/generate", "POST /v1/completions continues texts"),
        ("POST", "/completion", "POST /v1/completions continues texts"),
        ("POST", "/v1/embeddings", "has no embeddings"),
        ("GET", "/api/tags", "GET /v1/models"),
        ("POST", "/api/show", "GET /v1/models"),
        ("GET", "/slots", "GET /v1/forerun"),
        ("GET", "/nothing/there", "GET /openapi.json"),
        ("GET", "/v1/chat/completions", "this path takes POST"),
        ("POST", "/v1/models", "this path takes GET"),
        ("GET", "/" + "x" * 300, "GET /openapi.json"),
    ],
)
def test_a_route_that_is_not_here_names_the_one_that_is(
    client: httpx.Client, method: str, path: str, instead: str
) -> None:
    message = refused(client.request(method, path, json={}), 405 if "takes" in instead else 404)["message"]
    assert message.startswith(f"no route {method} {path.partition('?')[0][:100]}")
    assert instead in message
    assert len(message) < 250


def test_a_body_must_be_json_and_small(client: httpx.Client, server: Served) -> None:
    refused(client.post("/v1/completions", content=b"prompt=x"), 415)
    too_large = b" " * (server.service.config.max_prompt_body_bytes + 1)
    headers = {"content-type": "application/json"}
    refused(client.post("/v1/completions", content=too_large, headers=headers), 413)


def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers(client: httpx.Client, server: Served) -> None:
    length = server.service.engine.max_length
    error = refused(
        client.post("/v1/completions", json={"prompt": [5] * length}), 400, "context_length_exceeded", "prompt"
    )
    assert error["message"].count(str(length)) == 2
    refused(client.post("/v1/completions", json={"prompt": [999_999]}), 400, param="prompt")


BOUNDS: list[tuple[dict[str, Any], dict[str, Any]]] = [  # the most that is taken, and one more
    ({"stop": ["x"] * 64}, {"stop": ["x"] * 65}),
    ({"stop": "x" * 1024}, {"stop": "x" * 1025}),
    ({"n": 16, "max_tokens": 1}, {"n": 17, "max_tokens": 1}),
    ({"logprobs": True, "top_logprobs": 20}, {"logprobs": True, "top_logprobs": 21}),
    ({"logit_bias": {str(i): 0 for i in range(1024)}}, {"logit_bias": {str(i): 0 for i in range(1025)}}),
    ({"stop_token_ids": [5] * 64}, {"stop_token_ids": [5] * 65}),
    ({"max_tokens": 10**19 - 1, "stop": ["e", "t", " ", "\n"]}, {"max_tokens": 10**19}),
    ({"temperature": 5.0}, {"temperature": 5.1}),
    ({"seed": 2**63 - 1}, {"seed": 2**63}),
    ({"user": "u" * 256}, {"user": "u" * 257}),
    ({"model": "builtin"}, {"model": "m" * 257}),
    (
        {"chat_template_kwargs": {str(i): 0 for i in range(64)}},
        {"chat_template_kwargs": {str(i): 0 for i in range(65)}},
    ),
    ({"x": {str(i): 0 for i in range(4096)}}, {"x": {str(i): 0 for i in range(4097)}}),
    ({"x": 10**19 - 1}, {"x": 10**19}),
]


@pytest.mark.parametrize(("most", "more"), BOUNDS, ids=[str(next(iter(more))) for _, more in BOUNDS])
def test_bounds(client: httpx.Client, most: dict[str, Any], more: dict[str, Any]) -> None:
    asked = {**CHAT, "max_tokens": 1}
    assert client.post("/v1/chat/completions", json={**asked, **most}).status_code == 200
    refused(client.post("/v1/chat/completions", json={**asked, **more}), 400)


def test_more_messages_and_longer_addresses_than_there_may_be(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "hi"}] * 2049
    refused(client.post("/v1/chat/completions", json={"messages": messages}), 400, param="messages")
    refused(client.get("/health?" + "x" * 5000), 414)


def test_other_hosts_and_origins_may_not_come_in(client: httpx.Client, server: Served) -> None:
    refused(client.get("/v1/models", headers={"host": "evil.example"}), 403, "host_not_allowed")
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", "file://"):
        refused(client.get("/v1/models", headers={"origin": origin}), 403, "origin_not_allowed")
    own = client.get("/v1/models", headers={"origin": server.url})
    assert own.status_code == 200
    assert not [name for name in own.headers if name.startswith("access-control")]
    assert client.get("/v1/models", headers={"host": f"localhost:{server.address[1]}"}).status_code == 200


def test_a_request_id_is_given_back(client: httpx.Client) -> None:
    assert client.get("/health", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    for bad in ("a b", "x" * 65, "http://1.2.3.4/"):
        assert client.get("/health", headers={"x-request-id": bad}).headers["x-request-id"] != bad


def test_bytes_that_are_no_http_get_an_answer_or_an_end(server: Served) -> None:
    for sent in (
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * 20_000,
    ):
        with socket.create_connection(server.address, timeout=60) as sock:
            sock.sendall(sent)
            answer = sock.recv(100)
            assert answer.startswith(b"HTTP/1.1 4") or answer == b""


@pytest.fixture(scope="module")
def locked() -> Any:
    with served(api_keys=(KEY, "another-key-of-this-server"), is_demo=True) as running:
        yield running


def test_a_key_opens_every_route_and_nothing_opens_without(locked: Served) -> None:
    right = {"authorization": f"Bearer {KEY}"}
    wrong: list[dict[str, Any]] = [
        {},
        {"authorization": "Bearer"},
        {"authorization": KEY},
        {"authorization": f"Bearer {KEY[:-1]}"},
        {"authorization": f"Bearer {KEY}x"},
        {"authorization": f"Basic {KEY}"},
        {"authorization": b"Bearer \xff\xfe"},
        {"authorization": "Bearer " + "x" * 8000},
        {"x-api-key": KEY[:-1]},
    ]
    with locked.client() as client:
        for path in (
            "/v1/models",
            "/metrics",
            "/openapi.json",
            "/version",
            "/v1/forerun",
            "/nothing",
            "/health/",
        ):
            for headers in wrong:
                refused(client.get(path, headers=headers), 401, "invalid_api_key")
        for headers in wrong:
            refused(client.post("/v1/chat/completions", json=CHAT, headers=headers), 401)
            refused(client.post("/health", headers=headers), 401)
        assert client.get("/health").status_code == client.get("/ready").status_code == 200
        assert client.get("/metrics", headers=right).status_code == 200
        assert client.get("/metrics", headers={"x-api-key": KEY}).status_code == 200
        other = {"authorization": "bearer another-key-of-this-server"}
        assert client.post("/v1/chat/completions", json=CHAT, headers=other).status_code == 200
        refused(client.get("/nothing", headers=right), 404)
        refused(client.post("/v1/forerun/kill-drafter", headers=right), 409, "no_drafter_process")


def test_every_route_of_the_description_needs_the_key(locked: Served) -> None:
    with locked.client() as client:
        schema = client.get("/openapi.json", headers={"authorization": f"Bearer {KEY}"}).json()
        open_paths = {"/health", "/livez", "/ready"}
        for path, operations in schema["paths"].items():
            for method in operations:
                answer = client.request(method, path.replace("{name}", "x"))
                assert answer.status_code == (200 if path in open_paths else 401)
        assert schema["paths"]["/v1/chat/completions"]["post"]["responses"].keys() >= {"200", "4XX", "5XX"}
        assert json.dumps(schema).count("422") == 0
