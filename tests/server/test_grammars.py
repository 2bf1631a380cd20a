"""Grammars that cannot be used, over a real socket: every protocol says why, and the server goes on."""

import json
from typing import Any

import httpx
import pytest

from forerun.text.grammar_check import GrammarCheck
from tests.server.protocols.strict_clients import events_of
from tests.server.serving import Served

PART = {"type": "object", "properties": {"a": {"type": "array", "items": {"not": {}}}}, "required": ["a"]}
OVERGROWN = "((a|a)*)*b(a?){60}a{60}"  # compiled at once, and too large in the middle of a text
DEAD_END = {
    "type": "object",
    "properties": {"x": {"enum": [1234, 5678]}, "b": {"type": "string", "pattern": f"^{OVERGROWN}$"}},
    "required": ["x", "b"],
}
USER = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 60}


def shaped(schema: Any) -> list[tuple[str, str, dict[str, Any]]]:
    """Paths, the place of the schema, and bodies."""
    form = {"type": "json_schema", "schema": schema}
    nested = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    return [
        ("/v1/chat/completions", "response_format.json_schema.schema", {**USER, "response_format": nested}),
        ("/v1/chat/completions", "structured_outputs.json", {**USER, "structured_outputs": {"json": schema}}),
        ("/v1/completions", "guided_json", {"prompt": "hi", "guided_json": json.dumps(schema), "max_tokens": 60}),
        ("/v1/messages", "output_config.format.schema", {**USER, "output_config": {"format": form}}),
        ("/v1/responses", "text.format.schema", {"input": "hi", "text": {"format": form}, "max_output_tokens": 60}),
    ]


def message_of(answer: httpx.Response) -> str:
    assert answer.status_code == 400, answer.text
    message: str = answer.json()["error"]["message"]
    return message


@pytest.fixture(autouse=True)
def _is_ready_afterwards(client: httpx.Client) -> Any:
    yield
    assert client.get("/health").json() == {"status": "ok"}
    assert client.post("/v1/chat/completions", json=USER).status_code == 200


@pytest.mark.parametrize(("path", "place", "body"), shaped(PART))
def test_keyword_and_path_are_named(client: httpx.Client, path: str, place: str, body: dict[str, Any]) -> None:
    message = message_of(client.post(path, json=body))
    assert f"{place}.properties.a.items.not " in message


@pytest.mark.parametrize(("path", "place", "body"), shaped(False))
def test_a_schema_that_nothing_fits_is_refused(
    client: httpx.Client, path: str, place: str, body: dict[str, Any]
) -> None:
    assert "a JSON schema is an object or true" in message_of(client.post(path, json=body))


def tools(schema: Any) -> list[tuple[str, dict[str, Any]]]:
    function = {"name": "f", "parameters": schema}
    return [
        ("/v1/chat/completions", {**USER, "tools": [{"type": "function", "function": function}]}),
        ("/v1/messages", {**USER, "tools": [{"name": "f", "input_schema": schema}], "tool_choice": {"type": "any"}}),
        ("/v1/responses", {"input": "hi", "tools": [{"type": "function", **function}], "tool_choice": "required"}),
    ]


BAD_PATTERN = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(a"}}}


@pytest.mark.parametrize(("path", "body"), tools(BAD_PATTERN))
def test_the_tool_is_named(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    assert "tools.f.parameters.properties.a.pattern " in message_of(client.post(path, json=body))


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"regex": "(" * 5000 + ")" * 5000}},
        {"structured_outputs": {"grammar": "start: r0\n" + "\n".join(f'r{n}: r{n + 1} "a"' for n in range(5000))}},
        {"structured_outputs": {"json": '{"a":' * 5000 + "1" + "}" * 5000}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": ["x" * 100] * 10_000}}}},
        {"guided_json": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(9000)}}},
        {"grammar": "start: missing"},
    ],
)
def test_what_would_crash_the_compiler_is_refused(client: httpx.Client, fields: dict[str, Any]) -> None:
    message_of(client.post("/v1/chat/completions", json={**USER, **fields}))


def test_a_schema_of_a_thousand_levels_is_refused(client: httpx.Client) -> None:
    schema = '{"properties": {"a": ' * 1000 + "{}" + "}}" * 1000
    body = (
        json.dumps(USER)[:-1]
        + f', "response_format": {{"type": "json_schema", "json_schema": {{"schema": {schema}}}}}}}'
    )
    headers = {"content-type": "application/json"}
    message_of(client.post("/v1/chat/completions", content=body, headers=headers))


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(("path", "place", "body"), shaped(DEAD_END))
def test_a_dead_end_is_refused_before_the_answer_begins(
    client: httpx.Client, path: str, place: str, body: dict[str, Any], streams: bool
) -> None:
    message = message_of(client.post(path, json={**body, "stream": streams}))
    assert f"{place}" in message
    assert "it allows texts that cannot be completed" in message


@pytest.fixture
def _checks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GrammarCheck, "require", lambda *_: None)


@pytest.mark.usefixtures("_checks_nothing")
@pytest.mark.parametrize(("path", "place", "body"), shaped(DEAD_END))
def test_a_dead_end_that_was_not_found_ends_the_answer_with_an_error(
    client: httpx.Client, path: str, place: str, body: dict[str, Any]
) -> None:
    assert "allows no further token" in message_of(client.post(path, json=body))
    stream = client.post(path, json={**body, "stream": True})
    assert stream.status_code == 200
    name, data = events_of(stream.text)[-1]
    last = json.loads(data)
    error = last["response"]["error"] if name == "response.failed" else last["error"]
    assert "allows no further token" in error["message"]
    assert name == {"/v1/messages": "error", "/v1/responses": "response.failed"}.get(path)


@pytest.mark.usefixtures("_checks_nothing")
def test_a_dead_end_is_no_failure_of_the_engine(server: Served, client: httpx.Client) -> None:
    body = {**USER, "structured_outputs": {"json": DEAD_END}}
    message_of(client.post("/v1/chat/completions", json=body))
    assert server.service.thread.state == "ready"
