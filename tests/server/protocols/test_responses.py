"""Requests of the Responses API become what the engine is asked for."""

from typing import Any

import pytest

from forerun.core.grammar import Grammar
from forerun.server.protocols.errors import ApiError
from forerun.server.protocols.generation_request import Chat, GenerationRequest
from forerun.server.protocols.responses import ResponsesRequest, read

CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": '{"a":1}'}
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "one"}


def asked(**fields: Any) -> GenerationRequest:
    return read(ResponsesRequest(**{"input": "hi", **fields}))


def chat(**fields: Any) -> Chat:
    prompt = asked(**fields).prompt
    assert isinstance(prompt, Chat)
    return prompt


def test_a_text_is_a_users_message_behind_the_instructions() -> None:
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}]
    assert chat(instructions="Be kind.").messages == messages


def test_items_become_messages() -> None:
    messages = chat(
        input=[
            {
                "role": "developer",
                "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
            },
            {"type": "message", "role": "user", "content": "q"},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": "x"},
            {"type": "reasoning", "id": "rs_2", "summary": [], "content": [{"type": "reasoning_text", "text": "so"}]},
            CALL,
            {**CALL, "call_id": "call_2", "name": "read", "namespace": "mcp__files"},
            RESULT,
            {**RESULT, "call_id": "call_2", "output": [{"type": "input_text", "text": "two"}]},
            {"type": "custom_tool_call", "call_id": "call_3", "name": "patch", "input": 'say "x"'},
            {"type": "custom_tool_call_output", "call_id": "call_3", "output": "done"},
            {"type": "web_search_call", "id": "ws_1"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yes"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "more"}]},
        ]
    ).messages
    roles = ["developer", "user", "assistant", "tool", "tool", "assistant", "tool", "assistant", "user"]
    assert [message["role"] for message in messages] == roles
    assert messages[0]["content"] == "a\nb"
    assert messages[2]["reasoning_content"] == "so"
    functions = [call["function"] for message in messages for call in message.get("tool_calls", ())]
    assert functions == [
        {"name": "f", "arguments": '{"a":1}'},
        {"name": "mcp__files__read", "arguments": '{"a":1}'},
        {"name": "patch", "arguments": '{"input": "say \\"x\\""}'},
    ]
    assert [message["content"] for message in messages if message["role"] == "tool"] == ["one", "two", "done"]
    assert [message.get("tool_call_id") for message in messages if message["role"] == "tool"] == [
        "call_1", "call_2", "call_3",
    ]  # fmt: skip


def test_tools_are_flat_functions_for_the_model() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}
    found = asked(
        tools=[
            {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": False},
            {"type": "custom", "name": "patch", "description": "Edits.", "format": grammar},
            {"type": "namespace", "name": "mcp__files", "tools": [{"type": "function", "name": "read"}]},
            {"type": "web_search"},
            {"type": "local_shell"},
        ],
        tool_choice={"type": "custom", "name": "patch"},
        parallel_tool_calls=False,
    )
    assert isinstance(found.prompt, Chat)
    use = found.prompt.tool_use
    assert [tool["function"]["name"] for tool in use.shown] == ["f", "patch", "mcp__files__read"]
    assert use.shown[1]["function"]["parameters"]["required"] == ["input"]
    assert use.shown[1]["function"]["description"].endswith("start: /x/")
    assert (use.choice, use.names, use.is_parallel) == ("required", {"patch"}, False)
    assert list(found.ignored) == ["tools.web_search", "tools.local_shell"]


def test_fields_have_their_meaning() -> None:
    schema = {"type": "object"}
    found = asked(
        max_output_tokens=5, temperature=0, reasoning={"effort": "low", "summary": "auto"}, store=False, stream=True,
        include=["reasoning.encrypted_content"], text={"format": {"type": "json_schema", "name": "n", "schema": schema}},  # noqa: E501
        model="gpt-5", prompt_cache_key="k",
    )  # fmt: skip
    assert (found.limit, found.streams, found.model) == (5, True, "gpt-5")
    assert found.sampling == {"temperature": 0.0, "stop": ()}
    assert found.grammar == Grammar.json_schema(schema)
    assert isinstance(found.prompt, Chat)
    assert found.prompt.effort == "low"
    assert list(found.ignored) == ["include", "prompt_cache_key"]


IMAGE = {"type": "input_image", "image_url": "x"}
NOTE = "[an image that this model cannot see]"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ([{"type": "input_text", "text": "seen"}, IMAGE], f"seen\n{NOTE}"), ([IMAGE], NOTE), ({"a": 1}, '{"a": 1}'),
        (None, ""), ([1], "[1]"), ([{"type": "input_file", "file_id": "f"}], "[a file that this model cannot read]"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["function_call", "custom_tool_call"])
def test_a_history_is_read_whatever_it_holds(kind: str, output: Any, expected: str) -> None:
    calls: list[dict[str, Any]] = [
        {"type": kind, "name": "view", "call_id": None, "arguments": {"x": "y"}, "input": {"x": "y"}}, {"type": kind},
    ]  # fmt: skip
    user = {"role": "user", "content": [{"type": "input_text", "text": "look"}, IMAGE]}
    found = asked(
        input=[{"role": "user", "content": [IMAGE]}, *calls, {"type": f"{kind}_output", "output": output}, user]
    )
    assert isinstance(found.prompt, Chat)
    first, answer, result, last = found.prompt.messages
    functions = [call["function"] for call in answer["tool_calls"]]
    assert [function["name"] for function in functions] == ["view", ""]
    assert functions[0]["arguments"] == ('{"x": "y"}' if kind == "function_call" else '{"input": "{\\"x\\": \\"y\\"}"}')
    assert (first["content"], result["content"], last["content"]) == (NOTE, expected, f"look\n{NOTE}")
    assert "input.input_image" in found.ignored


@pytest.mark.parametrize(
    "fields",
    [
        {"previous_response_id": "resp_1"},
        {"conversation": "conv_1"},
        {"background": True},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        {"input": [{"content": "x"}]},
        {"tools": [{"type": "function"}]},
        {"tool_choice": {"type": "function", "name": "f"}},
        {"text": {"format": {"type": "json_schema"}}},
    ],
)
def test_what_cannot_be_done_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        asked(**fields)
    assert caught.value.status == 400
    assert caught.value.param is not None
