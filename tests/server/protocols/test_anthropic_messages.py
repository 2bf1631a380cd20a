"""Anthropic's requests become what the engine is asked for."""

from typing import Any

import pytest

from forerun.core.grammar import Grammar
from forerun.server.protocols.anthropic_messages import MessagesRequest, error_body, read
from forerun.server.protocols.errors import ApiError, PromptTooLongError
from forerun.server.protocols.generation_request import Chat, GenerationRequest

USER = {"role": "user", "content": "hi"}
TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}}}


def asked(**fields: Any) -> GenerationRequest:
    return read(MessagesRequest(**{"messages": [USER], "max_tokens": 9, **fields}))


def chat(**fields: Any) -> Chat:
    prompt = asked(**fields).prompt
    assert isinstance(prompt, Chat)
    return prompt


def test_fields_have_their_meaning() -> None:
    found = asked(stop_sequences=["a", "", "b"], temperature=1, top_p=0.9, top_k=5, stream=True, model="claude-opus-5")
    assert found.sampling == {"stop": ("a", "b"), "temperature": 1.0, "top_p": 0.9, "top_k": 5}
    assert (found.limit, found.streams, found.model) == (9, True, "claude-opus-5")
    schema = {"type": "object"}
    shaped = asked(output_config={"effort": "high", "format": {"type": "json_schema", "schema": schema}})
    assert shaped.grammar == Grammar.json_schema(schema)
    assert isinstance(shaped.prompt, Chat)
    assert shaped.prompt.effort == "high"


@pytest.mark.parametrize(
    "system",
    [
        "x-anthropic-billing-header: cc_version=2.1.37.0d9; cch=fa690;\nBe kind.\n\nBe short.",
        [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.37.0d9; cch=00000;"},
            {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "Be short."},
        ],
        "Be kind.\n\nBe short.",
    ],
)
def test_the_line_that_differs_in_every_request_is_dropped(system: Any) -> None:
    assert chat(system=system).messages == [{"role": "system", "content": "Be kind.\n\nBe short."}, USER]


def test_results_of_tools_follow_the_calls() -> None:
    messages = chat(
        messages=[
            USER,
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "so", "signature": "s"},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": "é"}},
                    {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "And then?"},
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "one"},
                    {
                        "type": "tool_result", "tool_use_id": "toolu_2", "is_error": True,
                        "content": [{"type": "text", "text": "two"}, {"type": "image", "source": {}}],
                    },
                ],
            },
            {"role": "system", "content": [{"type": "text", "text": "Agents: none."}]},
        ]
    ).messages  # fmt: skip
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "user", "system"]
    answer = messages[1]
    assert (answer["content"], answer["reasoning_content"]) == ("I look.", "so")
    assert [call["id"] for call in answer["tool_calls"]] == ["toolu_1", "toolu_2"]
    assert answer["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": "\\u00e9"}'}
    assert messages[2] == {"role": "tool", "tool_call_id": "toolu_1", "content": "one"}
    assert messages[3]["content"] == "two\n[an image that this model cannot see]"
    assert messages[4] == {"role": "user", "content": "And then?"}


def test_tools_are_functions_and_others_are_named() -> None:
    found = asked(tools=[TOOL, {"type": "web_search_20250305", "name": "web_search"}, {"name": "g", "type": "custom"}])
    assert isinstance(found.prompt, Chat)
    shown = [tool["function"] for tool in found.prompt.tool_use.shown]
    assert shown[0] == {"name": "f", "description": "d", "parameters": TOOL["input_schema"]}
    assert shown[1] == {"name": "g", "parameters": {"type": "object", "properties": {}}}
    assert list(found.ignored) == ["tools.web_search_20250305"]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ("auto", None, True)),
        ({"type": "auto", "disable_parallel_tool_use": True}, ("auto", None, False)),
        ({"type": "any"}, ("required", None, True)),
        ({"type": "none"}, ("none", None, True)),
        ({"type": "tool", "name": "f"}, ("required", {"f"}, True)),
    ],
)
def test_what_must_be_called(choice: Any, expected: tuple[Any, ...]) -> None:
    use = chat(tools=[TOOL, {**TOOL, "name": "g"}], tool_choice=choice).tool_use
    assert (use.choice, use.names, use.is_parallel) == expected
    assert len(use.callable) == (0 if use.choice == "none" else 1 if use.names else 2)
    assert len(use.shown) == 2


@pytest.mark.parametrize(
    ("thinking", "thinks"),
    [(None, None), ({"type": "disabled"}, False), ({"type": "adaptive"}, True),
     ({"type": "enabled", "budget_tokens": 5}, True)],
)  # fmt: skip
def test_thinking(thinking: Any, thinks: bool | None) -> None:
    assert chat(thinking=thinking).thinks is thinks


def test_an_answer_at_the_end_is_continued() -> None:
    assert chat(messages=[USER, {"role": "assistant", "content": "{"}]).continues
    calls = [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]
    assert not chat(messages=[USER, {"role": "assistant", "content": calls}]).continues
    assert not chat().continues


@pytest.mark.parametrize("kind", ["image", "document"])
def test_a_note_stands_for_what_is_no_text_unless_nothing_else_is_said(kind: str) -> None:
    block: dict[str, Any] = {"type": kind, "source": {"type": "base64"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [block]}
    note = {"image": "[an image that this model cannot see]", "document": "[a document that this model cannot read]"}[
        kind
    ]
    with pytest.raises(ApiError, match=r"messages\.0\.content: .* this model reads text only"):
        asked(messages=[{"role": "user", "content": [block, {"type": "text", "text": ""}]}])
    answer = {"role": "assistant", "content": [block, {"type": "text", "text": "no"}]}
    for content in ([{"type": "text", "text": "what?"}, block], [result, block]):
        found = asked(messages=[{"role": "user", "content": [block]}, answer, {"role": "user", "content": content}])
        assert isinstance(found.prompt, Chat)
        messages = found.prompt.messages
        assert (messages[0]["content"], messages[1]["content"]) == (note, f"{note}no")
        assert messages[-1]["content"].endswith(note)
        assert set(found.ignored) == {f"messages.content.{kind}"}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, ""), ({"a": "ä"}, '{"a": "ä"}'), ([5], "[5]"),
        ([{"type": "tool_reference", "tool_name": "f"}], "Tool: f"),
        ([{"type": "document", "source": {"type": "text", "data": "x"}}], "x"),
        ([{"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "y"}]}}], "y"),
        ([{"type": "search_result", "title": "z"}], '{"type": "search_result", "title": "z"}'),
    ],
)  # fmt: skip
def test_a_result_is_a_text_whatever_it_holds(content: Any, expected: str) -> None:
    call = {"type": "tool_use", "id": None, "name": "", "input": "{"}
    turns = [
        USER, {"role": "assistant", "content": None}, {"role": "assistant", "content": [call]},
        {"role": "user", "content": [{"type": "tool_result", "content": content}]},
    ]  # fmt: skip
    assert chat(messages=turns).messages[-1] == {"role": "tool", "tool_call_id": None, "content": expected}


def test_errors_have_anthropics_words() -> None:
    told = error_body(PromptTooLongError(9000, 8192, param="messages"), "r1")
    assert told["error"] == {
        "type": "invalid_request_error",
        "message": "prompt is too long: 9000 tokens > 8192 maximum",
    }
    assert (told["type"], told["request_id"]) == ("error", "r1")
    kinds = {
        status: error_body(ApiError(status, "x", code="c"), "r")["error"]["type"]
        for status in (400, 401, 403, 404, 405, 413, 429, 500, 503)
    }
    assert kinds == {
        400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
        405: "invalid_request_error", 413: "request_too_large", 429: "rate_limit_error", 500: "api_error",
        503: "overloaded_error",
    }  # fmt: skip
