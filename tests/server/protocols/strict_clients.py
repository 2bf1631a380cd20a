"""Clients that read streams as strictly as the strictest ones in use, and put the answers together."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

TYPES = {"thinking": "thinking_delta", "text": "text_delta", "tool_use": "input_json_delta"}
KEYS = {"thinking_delta": "thinking", "text_delta": "text", "input_json_delta": "partial_json"}


@dataclass
class Read:
    """What a client has read: thoughts, text, and the calls' ids, names and arguments."""

    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    end: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)


def events_of(stream: bytes | str) -> list[tuple[str | None, str]]:
    """Names and data of a stream's events; comments are skipped."""
    text = stream.decode() if isinstance(stream, bytes) else stream
    found = []
    for block in text.split("\n\n")[:-1]:
        lines = [line for line in block.split("\n") if not line.startswith(":")]
        if lines:
            names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
            (data,) = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
            assert len(names) + 1 == len(lines)
            found.append((names[0] if names else None, data))
    assert text.endswith("\n\n")
    return found


def read_chat(stream: bytes | str) -> Read:
    """OpenAI's chat, for clients that demand an index in every piece of a call, and id and name in its first only."""
    *events, done = events_of(stream)
    assert done == (None, "[DONE]")
    read = Read()
    calls = dict[int, list[str]]()
    chunks = [json.loads(data) for _, data in events]
    assert all(name is None for name, _ in events)
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    for chunk in chunks:
        read.usage = chunk.get("usage") or read.usage
        for choice in chunk["choices"]:
            delta = choice["delta"]
            assert read.end is None, "nothing follows the end"
            read.end = choice["finish_reason"]
            assert (
                len([key for key in delta if key in ("content", "reasoning_content", "tool_calls") and delta[key]]) <= 1
            )
            read.content += delta.get("content") or ""
            read.reasoning += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", ()):
                read_call(call, calls)
    read.calls = [(id_, name, "".join(pieces)) for id_, name, *pieces in calls.values()]
    assert list(calls) == list(range(len(calls)))
    return read


def read_call(call: dict[str, Any], calls: dict[int, list[str]]) -> None:
    """A piece of a call."""
    index = call["index"]
    if index not in calls:
        assert call["type"] == "function"
        assert call["id"]
        assert call["function"]["name"]
        assert call["function"]["arguments"] == ""
        calls[index] = [call["id"], call["function"]["name"]]
        return
    assert index == max(calls), "only the last call goes on"
    assert set(call) == {"index", "function"}, "id, type and name stand in the first piece only"
    assert set(call["function"]) == {"arguments"}
    calls[index].append(call["function"]["arguments"])


def read_messages(stream: bytes | str) -> Read:
    """Anthropic's messages, as strict as their SDK: blocks are stopped before the next, and their indexes rise."""
    read = Read()
    blocks = list[dict[str, Any]]()
    is_open = False
    is_signed = False
    events = [(name, json.loads(data)) for name, data in events_of(stream)]
    assert all(name == event["type"] for name, event in events)
    events = [(name, event) for name, event in events if name != "ping"]
    assert [events[0][0], events[-2][0], events[-1][0]] == ["message_start", "message_delta", "message_stop"]
    start = events[0][1]["message"]
    assert start["type"] == "message"
    assert start["content"] == []
    assert start["stop_reason"] is None
    for name, event in events[1:-2]:
        if name == "content_block_start":
            assert not is_open
            assert event["index"] == len(blocks)
            block = event["content_block"]
            assert block["type"] in TYPES
            assert block["type"] != "tool_use" or (block["id"] and block["name"] and block["input"] == {})
            blocks.append({**block, "pieces": []})
            is_open = True
            is_signed = False
        elif name == "content_block_delta":
            assert is_open
            assert event["index"] == len(blocks) - 1
            assert not is_signed
            delta = event["delta"]
            is_signed = delta["type"] == "signature_delta"
            if not is_signed:
                assert delta["type"] == TYPES[blocks[-1]["type"]]
                assert delta[KEYS[delta["type"]]] != ""
                blocks[-1]["pieces"].append(delta[KEYS[delta["type"]]])
        else:
            assert name == "content_block_stop"
            assert is_open
            assert event["index"] == len(blocks) - 1
            assert is_signed == (blocks[-1]["type"] == "thinking")
            is_open = False
    assert not is_open
    for block in blocks:
        text = "".join(block["pieces"])
        assert text or block["type"] == "tool_use", "no block is empty"
        if block["type"] == "tool_use":
            read.calls.append((block["id"], block["name"], text))
        elif block["type"] == "text":
            read.content += text
        else:
            read.reasoning += text
    read.end = events[-2][1]["delta"]["stop_reason"]
    read.usage = events[-2][1]["usage"]
    assert all(isinstance(read.usage[key], int) for key in ("input_tokens", "cache_read_input_tokens", "output_tokens"))
    return read


def read_responses(stream: bytes | str) -> Read:
    """The Responses API, as strict as Codex: it acts on items that are done, and needs the last event."""
    events = [(name, json.loads(data)) for name, data in events_of(stream)]
    assert all(name == event["type"] for name, event in events)
    assert [event["sequence_number"] for _, event in events] == list(range(len(events)))
    assert [name for name, _ in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1][0]
    response = events[-1][1]["response"]
    assert last in ("response.completed", "response.incomplete")
    ids = list[str]()
    items = list[dict[str, Any]]()
    texts = list[str]()
    for name, event in events[2:-1]:
        match name:
            case "response.in_progress":
                pass
            case "response.output_item.added":
                assert len(ids) == len(items), "an item is done before the next one is added"
                assert event["output_index"] == len(ids)
                ids.append(event["item"]["id"])
                texts.append("")
            case "response.output_item.done":
                assert (event["output_index"], event["item"]["id"]) == (len(items), ids[-1])
                items.append(event["item"])
                check_text(event["item"], texts[-1])
            case _:
                assert (event["output_index"], event["item_id"]) == (len(ids) - 1, ids[-1])
                assert len(ids) == len(items) + 1, "only an item that is open goes on"
                texts[-1] += event.get("delta", "") if name.endswith(".delta") else ""
                if name in ("response.output_text.delta", "response.reasoning_text.delta"):
                    assert event["content_index"] == 0
    assert response["output"] == items
    assert isinstance(response["id"], str)
    read = Read(end=response["status"], usage=response["usage"])
    assert all(isinstance(read.usage[key], int) for key in ("input_tokens", "output_tokens", "total_tokens"))
    read_items(read, items)
    return read


def check_text(item: dict[str, Any], text: str) -> None:
    """An item that is done has the text of its pieces."""
    match item["type"]:
        case "function_call":
            assert item["arguments"] == text
        case "custom_tool_call":
            assert item["input"] == text
        case _:
            assert [part["text"] for part in item["content"]] == [text]
            assert text, "no item is empty"


def read_items(read: Read, items: Iterable[dict[str, Any]]) -> None:
    """The texts and calls of items."""
    for item in items:
        match item["type"]:
            case "message":
                read.content += "".join(part["text"] for part in item["content"])
            case "reasoning":
                read.reasoning += "".join(part["text"] for part in item["content"])
            case "function_call":
                assert item["call_id"] != item["id"]
                read.calls.append((item["call_id"], item["name"], item["arguments"]))
            case "custom_tool_call":
                read.calls.append((item["call_id"], item["name"], item["input"]))
