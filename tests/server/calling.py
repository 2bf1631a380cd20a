"""Requests that ask for calls of tools, in every protocol, and what their answers hold."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from tests.server.protocols.strict_clients import Read, read_chat, read_items, read_messages, read_responses

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
}
END = {"type": "object", "properties": {"why": {"enum": ["done", "lost"]}}, "required": ["why"]}
SCHEMAS: Mapping[str, dict[str, Any]] = {
    "weather": WEATHER,
    "end-it": END,
    "mcp__time__now": {"type": "object", "properties": {}},
}


@dataclass(frozen=True)
class Way:
    """How a protocol asks for calls.

    Args:
        body: a request's fields, for tools by name, a choice ("required", "none", "auto" or a name), whether calls may
            be several, and most tokens.
        read: reads a stream.
        whole: reads a whole answer.
        ended: the end of an answer that has calls.
    """

    path: str
    body: Callable[[Sequence[str], str, bool, int], dict[str, Any]]
    read: Callable[[bytes], Read]
    whole: Callable[[Any], Read]
    ended: str


def chat_body(names: Sequence[str], choice: str, is_parallel: bool, limit: int) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name, "parameters": SCHEMAS[name]}} for name in names]
    named = {"type": "function", "function": {"name": choice}}
    return {
        "messages": [{"role": "user", "content": "hi"}], "tools": tools, "max_tokens": limit,
        "tool_choice": choice if choice in ("auto", "none", "required") else named, "parallel_tool_calls": is_parallel,
    }  # fmt: skip


def messages_body(names: Sequence[str], choice: str, is_parallel: bool, limit: int) -> dict[str, Any]:
    kind = {"required": "any", "auto": "auto", "none": "none"}.get(choice, "tool")
    named = {"name": choice} if kind == "tool" else {}
    tools = [{"name": name, "input_schema": SCHEMAS[name]} for name in names]
    return {
        "messages": [{"role": "user", "content": "hi"}], "tools": tools, "max_tokens": limit,
        "tool_choice": {"type": kind, **named, "disable_parallel_tool_use": not is_parallel},
    }  # fmt: skip


def responses_body(names: Sequence[str], choice: str, is_parallel: bool, limit: int) -> dict[str, Any]:
    tools = [{"type": "function", "name": name, "parameters": SCHEMAS[name]} for name in names]
    named = {"type": "function", "name": choice}
    return {
        "input": "hi", "tools": tools, "max_output_tokens": limit, "parallel_tool_calls": is_parallel,
        "tool_choice": choice if choice in ("auto", "none", "required") else named,
    }  # fmt: skip


def whole_chat(body: Any) -> Read:
    (choice,) = body["choices"]
    message = choice["message"]
    calls = [
        (call["id"], call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())
    ]
    return Read(
        reasoning=message.get("reasoning_content", ""), content=message["content"] or "", calls=calls,
        end=choice["finish_reason"], usage=body["usage"],
    )  # fmt: skip


def whole_messages(body: Any) -> Read:
    read = Read(end=body["stop_reason"], usage=body["usage"])
    for block in body["content"]:
        match block["type"]:
            case "tool_use":
                read.calls.append((block["id"], block["name"], json.dumps(block["input"])))
            case "text":
                read.content += block["text"]
            case "thinking":
                read.reasoning += block["thinking"]
    return read


def whole_response(body: Any) -> Read:
    read = Read(end=body["status"], usage=body["usage"])
    read_items(read, body["output"])
    return read


WAYS = {
    "chat": Way("/v1/chat/completions", chat_body, read_chat, whole_chat, "tool_calls"),
    "messages": Way("/v1/messages", messages_body, read_messages, whole_messages, "tool_use"),
    "responses": Way("/v1/responses", responses_body, read_responses, whole_response, "completed"),
}


def ask(
    client: httpx.Client, way: Way, names: Sequence[str], choice: str, *, is_parallel: bool = False, limit: int = 150,
    streams: bool = True, **more: Any,
) -> Read:  # fmt: skip
    """The answer to a request."""
    answer = client.post(way.path, json={**way.body(names, choice, is_parallel, limit), "stream": streams, **more})
    assert answer.status_code == 200, answer.text
    return way.read(answer.content) if streams else way.whole(answer.json())
