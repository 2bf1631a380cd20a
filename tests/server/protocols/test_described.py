"""The description of parts that are read by hand allows what is accepted, and nothing else."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from forerun.server.protocols import described
from forerun.server.protocols.anthropic_messages import MessagesRequest
from forerun.server.protocols.anthropic_messages import read as read_messages
from forerun.server.protocols.conversation import ChatMessage, message_body
from forerun.server.protocols.errors import ApiError
from forerun.server.protocols.response_format import format_grammar
from forerun.server.protocols.responses_history import ItemReader, offered_tools
from forerun.server.protocols.tools import NAME_PATTERN, function_tools, read_choice

NAMES: list[Any] = ["f", "a b", "größe", "x" * 256, "", " f", "f ", "a\nb", "<f>", "x" * 257, 5, None, {}]
KINDS: list[Any] = ["function", "custom", "namespace", "web_search", "", None, 5, {}]
TOOLS = [
    {},
    *({"name": name} for name in NAMES),
    *({"function": {"name": name}} for name in NAMES),
    *({"type": kind} for kind in KINDS),
    *({"type": kind, "name": "f"} for kind in KINDS),
    *({"type": kind, "function": {"name": "f"}} for kind in KINDS),
    *({"type": "function", "function": inner, "name": "f"} for inner in ({}, None, [], "f", {"name": ""})),
    *({"type": "namespace", "name": name, "tools": []} for name in NAMES),
    *({"type": "namespace", "name": "n", "tools": inner} for inner in (None, {}, [5], [{}], [{"name": "f"}])),
    {"type": "namespace", "name": "n", "tools": [{"type": "web_search"}, {"type": "custom"}]},
]
ALLOWED = [{}, {"tools": []}, {"tools": {}}, {"tools": [{"name": "f"}], "mode": "required"}, {"tools": [], "mode": {}}]
CHOICES = [
    *("auto", "none", "required", "any", "f", ""),
    *({"type": kind, "name": "f"} for kind in ("function", "custom", "tool", "auto", None)),
    *({"type": "function", "function": {"name": name}} for name in ("f", "", None)),
    *({"type": "allowed_tools", **allowed} for allowed in ALLOWED),
    *({"type": "allowed_tools", "allowed_tools": allowed} for allowed in ALLOWED),
    {},
]
SCHEMAS: list[Any] = [{}, True, False, None, 5, []]
FORMATS = [
    {},
    *({"type": kind} for kind in ("text", "json_object", "json_schema", "grammar", None, {})),
    *({"type": kind, "schema": schema} for kind in ("text", "json_object", "json_schema") for schema in SCHEMAS),
    *({"type": "json_schema", "json_schema": {"schema": schema}} for schema in SCHEMAS),
    *({"type": "json_schema", "json_schema": value} for value in SCHEMAS[2:]),
]
ITEMS = [
    {},
    *({"type": kind} for kind in ("message", "function_call", "custom_tool_call", "web_search_call", None, 5)),
    *({"role": role, "content": "x"} for role in ("user", "", None, 5)),
    *({"type": kind, "role": "user"} for kind in ("message", "reasoning", None)),
    *({"type": "function_call", "name": "f", "arguments": given} for given in ("{}", {}, None)),
    *({"type": "custom_tool_call", "name": name, "input": "x"} for name in ("f", None)),
]


def messages_tool(tool: Any) -> None:
    read_messages(MessagesRequest(messages=[{"role": "user", "content": "hi"}], tools=[tool]))  # type: ignore[list-item]


def messages_choice(choice: Any) -> None:
    tools = [{"name": "f"}]
    read_messages(MessagesRequest(messages=[{"role": "user", "content": "hi"}], tools=tools, tool_choice=choice))  # type: ignore[list-item]


CASES: list[tuple[Any, Callable[[Any], Any], list[Any]]] = [
    (described.CHAT_TOOL, lambda tool: function_tools([tool]), TOOLS),
    (described.MESSAGES_TOOL, messages_tool, TOOLS),
    (described.RESPONSES_TOOL, lambda tool: offered_tools([tool]), TOOLS),
    (described.TOOL_CHOICE, lambda choice: read_choice(choice, "tool_choice"), CHOICES),
    (described.MESSAGES_CHOICE, messages_choice, [choice for choice in CHOICES if isinstance(choice, dict)]),
    (described.FORMAT, lambda given: format_grammar(given, "format"), FORMATS),
    (described.ITEM, lambda item: ItemReader().read(0, item), ITEMS),
]


@pytest.mark.parametrize(("schema", "read", "parts"), CASES)
def test_what_is_described_is_what_is_accepted(schema: Any, read: Callable[[Any], Any], parts: list[Any]) -> None:
    validator = Draft202012Validator(schema)
    accepted = 0
    for part in parts:
        try:
            read(part)
        except ApiError:
            assert not validator.is_valid(part), part
        else:
            accepted += 1
            assert validator.is_valid(part), part
    assert 0 < accepted < len(parts)


@pytest.mark.parametrize("space", ["\x1c", "\x1f", "\x85", "\ufeff"])
def test_a_tools_name_has_no_spaces_around_it_in_any_dialect_of_regular_expressions(space: str) -> None:
    for flags in (re.NOFLAG, re.ASCII):  # dialects differ in what the class of spaces holds
        assert re.fullmatch(NAME_PATTERN, f"f{space}", flags) is None
        assert re.fullmatch(NAME_PATTERN, f"f{space}f", flags)


@pytest.mark.parametrize(("name", "is_taken"), [("f", True), ("", True), (None, True), ({}, False), (5, False)])
def test_the_name_of_an_earlier_call_may_be_empty_or_null_as_described(name: Any, is_taken: bool) -> None:
    message = {"role": "assistant", "tool_calls": [{"function": {"name": name}}]}
    assert Draft202012Validator(ChatMessage.model_json_schema()).is_valid(message) == is_taken
    if is_taken:
        assert message_body(ChatMessage.model_validate(message), [])["tool_calls"][0]["function"]["name"] == (
            name or ""
        )
    else:
        with pytest.raises(ValidationError):
            ChatMessage.model_validate(message)
