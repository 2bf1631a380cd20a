"""Streams that strict clients can read, and that say what the whole answer says, however rounds cut them."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun import Engine
from forerun.core.steps import FinishReason
from forerun.server.protocols import anthropic_messages, chat, responses
from forerun.server.protocols.responses import ResponsesRequest
from forerun.text.output.events import CallArguments, CallEnded, CallStarted, Content, OutputEvent, Reasoning
from forerun.text.tokenizer import Tokenizer
from tests.server.protocols.strict_clients import Read, events_of, read_chat, read_items, read_messages, read_responses
from tests.server.protocols.written import written
from tests.server.serving import ENGINE

TOOLS = [
    {"type": "function", "name": "plain"},
    {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}},
    {"type": "namespace", "name": "mcp__files", "tools": [{"type": "function", "name": "read"}]},
]
SOURCE = ResponsesRequest(input="x", tools=TOOLS)
PIECES = st.lists(st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=4), min_size=1, max_size=3)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    with Engine(ENGINE) as engine:
        return engine.tokenizer


@st.composite
def answers(draw: st.DrawFn) -> tuple[list[list[OutputEvent]], Read]:
    """The events of an answer, cut into rounds anywhere, and what they say."""
    events = list[OutputEvent]()
    said = Read()
    for piece in draw(PIECES) if draw(st.booleans()) else ():
        events.append(Reasoning(piece))
        said.reasoning += piece
    for _ in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            for piece in draw(PIECES):
                events.append(Content(piece))
                said.content += piece
            continue
        number = len(said.calls)
        name = draw(st.sampled_from(["plain", "patch", "mcp__files__read"]))
        arguments = json.dumps({"input": "".join(draw(PIECES))})
        cut = draw(st.integers(1, len(arguments)))
        events.append(CallStarted(number, f"call_{number}", name))
        events += [CallArguments(number, text) for text in (arguments[:cut], arguments[cut:]) if text]
        events.append(CallEnded(number))
        said.calls.append((f"call_{number}", name, arguments))
    rounds = [list[OutputEvent]()]
    for event in events:
        if draw(st.booleans()):
            rounds.append([])
        rounds[-1].append(event)
    return rounds, said


@given(answers())
def test_chat(tokenizer: Tokenizer, answer: tuple[list[list[OutputEvent]], Read]) -> None:
    rounds, said = answer
    stream, whole = written(chat.PROTOCOL, rounds, tokenizer)
    read = read_chat(stream)
    assert (read.reasoning, read.content, read.calls) == (said.reasoning, said.content, said.calls)
    assert read.end == ("tool_calls" if said.calls else "stop")
    (choice,) = whole["choices"]
    message = choice["message"]
    assert message["content"] == (said.content or (None if said.calls else ""))
    assert message.get("reasoning_content", "") == said.reasoning
    calls = [
        (call["id"], call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())
    ]
    assert (calls, choice["finish_reason"]) == (said.calls, read.end)


@given(answers())
def test_messages(tokenizer: Tokenizer, answer: tuple[list[list[OutputEvent]], Read]) -> None:
    rounds, said = answer
    stream, whole = written(anthropic_messages.PROTOCOL, rounds, tokenizer)
    read = read_messages(stream)
    calls = [(id_.replace("call_", "toolu_"), name, arguments) for id_, name, arguments in said.calls]
    assert (read.reasoning, read.content, read.calls) == (said.reasoning, said.content, calls)
    assert read.end == whole["stop_reason"] == ("tool_use" if calls else "end_turn")
    blocks = whole["content"]
    uses = [(block["id"], block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
    assert uses == [(id_, name, json.loads(arguments)) for id_, name, arguments in calls]
    assert "".join(block["text"] for block in blocks if block["type"] == "text") == said.content
    assert all(block.get("text", "x") and block.get("thinking", "x") for block in blocks)


@given(answers())
def test_responses(tokenizer: Tokenizer, answer: tuple[list[list[OutputEvent]], Read]) -> None:
    rounds, said = answer
    stream, whole = written(responses.PROTOCOL, rounds, tokenizer, source=SOURCE)
    read = read_responses(stream)
    again = Read()
    own = {"patch": "patch", "plain": "plain", "mcp__files__read": "read"}
    calls = [
        (id_, own[name], json.loads(arguments)["input"] if name == "patch" else arguments)
        for id_, name, arguments in said.calls
    ]
    assert (read.reasoning, read.content, read.calls, read.end) == (said.reasoning, said.content, calls, "completed")
    read_items(again, whole["output"])
    assert (again.reasoning, again.content, again.calls) == (read.reasoning, read.content, read.calls)
    namespaces = [item.get("namespace") for item in whole["output"] if item["type"].endswith("_call")]
    assert namespaces == ["mcp__files" if name == "mcp__files__read" else None for _, name, _ in said.calls]


CUT: Sequence[Sequence[OutputEvent]] = [
    [Reasoning("r"), Content("c"), CallStarted(0, "call_a", "plain")], [CallArguments(0, '{"a": "b')],
]  # fmt: skip


@pytest.mark.parametrize("finish", [FinishReason.LENGTH, FinishReason.STOP])
def test_a_call_that_breaks_off_is_delivered_as_far_as_it_came(tokenizer: Tokenizer, finish: FinishReason) -> None:
    """Whoever ended the text: the reason says that it is incomplete, and nobody takes it for a call to be made."""
    stream, whole = written(chat.PROTOCOL, CUT, tokenizer, finish=finish)
    read = read_chat(stream)
    assert (read.calls, read.end) == ([("call_a", "plain", '{"a": "b')], "length")
    assert whole["choices"][0]["finish_reason"] == "length"
    stream, whole = written(anthropic_messages.PROTOCOL, CUT, tokenizer, finish=finish)
    read = read_messages(stream)
    assert (read.calls, read.end, whole["stop_reason"]) == ([("toolu_a", "plain", '{"a": "b')], *["max_tokens"] * 2)
    assert whole["content"][-1] == {"type": "text", "text": 'plain {"a": "b'}
    stream, whole = written(responses.PROTOCOL, CUT, tokenizer, source=SOURCE, finish=finish)
    read = read_responses(stream)
    is_cut = finish is FinishReason.LENGTH  # Codex ends its turn with an incomplete response, and nothing was cut
    status, details = ("incomplete", {"reason": "max_output_tokens"}) if is_cut else ("completed", None)
    assert (read.calls, read.end) == ([("call_a", "plain", '{"a": "b')], status)
    assert (whole["status"], whole["incomplete_details"]) == (status, details)
    assert [item["status"] for item in whole["output"]] == ["completed", "completed", "incomplete"]


def test_a_call_that_breaks_off_before_a_text_is_incomplete(tokenizer: Tokenizer) -> None:
    rounds = [*CUT, [Content("more")]]
    stream, whole = written(responses.PROTOCOL, rounds, tokenizer, source=SOURCE)
    assert [item["status"] for item in whole["output"]] == ["completed", "completed", "incomplete", "completed"]
    done = [json.loads(data)["item"] for name, data in events_of(stream.decode()) if name.endswith("item.done")]
    assert done == whole["output"]
    _, whole = written(anthropic_messages.PROTOCOL, rounds, tokenizer)
    assert ([block["type"] for block in whole["content"]], whole["stop_reason"]) == (
        ["thinking", "text", "text", "text"], "max_tokens",
    )  # fmt: skip


def test_the_stop_text_that_ended_a_message_is_named(tokenizer: Tokenizer) -> None:
    _, whole = written(anthropic_messages.PROTOCOL, [[Content("a")]], tokenizer, stop="END")
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("stop_sequence", "END")


def test_ids_that_templates_demand_in_a_form_of_their_own_stay(tokenizer: Tokenizer) -> None:
    events: Any = [[CallStarted(0, "abcdefghi", "plain"), CallArguments(0, "{}"), CallEnded(0)]]
    _, whole = written(anthropic_messages.PROTOCOL, events, tokenizer)
    assert whole["content"] == [{"type": "tool_use", "id": "abcdefghi", "name": "plain", "input": {}}]
