"""Turns Anthropic's blocks of earlier messages into messages for chat templates."""

import json
from collections.abc import Sequence
from typing import Any, Final

from forerun.server.protocols.sse import Body
from forerun.server.protocols.unsupported import as_text, is_part, require_readable, texts_of_parts

BILLING: Final = "x-anthropic-billing-header:"  # Claude Code's first line, which differs in every request
AT: Final = "messages.content"  # in names of what was left out


def system_text(system: str | Sequence[Body]) -> str:
    """The system prompt, without the line that differs in every request, so that it is found in the cache."""
    if isinstance(system, str):
        first, _, rest = system.partition("\n")
        return rest.lstrip("\n") if first.startswith(BILLING) else system
    texts = [text for block in system if isinstance(text := block.get("text"), str)]
    return "\n\n".join(text for text in texts if text and not text.startswith(BILLING))


def messages_of(given: Sequence[tuple[str, str | Sequence[Body] | None]]) -> tuple[list[Body], list[str]]:
    """Messages from pairs of role and content, and the names of block types that were left out.

    The results of tools come before the user's text in the same message, so that they follow the calls.

    Raises:
        ApiError: the last message is only an image or a document, which this model cannot read.
    """
    role, last = given[-1] if given else ("", "")
    if role == "user" and last is not None and not isinstance(last, str):
        require_readable(last, f"messages.{len(given) - 1}.content")
    messages: list[Body] = []
    ignored: list[str] = []
    for role, content in given:
        if content is None or isinstance(content, str):
            messages.append({"role": role, "content": content or ""})
        elif role == "assistant":
            messages.append(assistant_message(content, ignored))
        else:
            messages += results_of(content, ignored)
            said = [block for block in content if block.get("type") != "tool_result"]
            texts = texts_of_parts(said, ignored, at=AT, is_result=False)
            if texts or not content:
                messages.append({"role": role, "content": "\n".join(texts)})
    return messages, ignored


def assistant_message(blocks: Sequence[Body], ignored: list[str]) -> Body:
    """An earlier answer."""
    texts = list[str]()
    thoughts = list[str]()
    calls = list[Body]()
    for block in blocks:
        match block:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "thinking", "thinking": str(thought)}:
                thoughts.append(thought)
            case {"type": "tool_use", "name": str(name), **rest}:
                arguments = rest.get("input")
                function = {"name": name, "arguments": json.dumps({} if arguments is None else arguments)}
                calls.append({"id": id_of(rest.get("id")), "type": "function", "function": function})
            case {"type": "redacted_thinking"}:
                pass
            case _:
                texts += texts_of_parts([block], ignored, at=AT, is_result=False)
    message: Body = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def results_of(blocks: Sequence[Body], ignored: list[str]) -> list[Body]:
    """The results of tools in a user's message."""
    return [
        {
            "role": "tool",
            "tool_call_id": id_of(block.get("tool_use_id")),
            "content": result_text(block.get("content"), ignored),
        }
        for block in blocks
        if block.get("type") == "tool_result"
    ]


def result_text(content: Any, ignored: list[str]) -> str:
    """A tool's result, as text."""
    if not (isinstance(content, list) and all(map(is_part, content))):
        return as_text(content)
    parts = [
        {"type": "text", "text": f"Tool: {part.get('tool_name')}"} if part["type"] == "tool_reference" else part
        for part in content
    ]
    return "\n".join(texts_of_parts(parts, ignored, at=AT, is_result=True))


def id_of(given: Any) -> str | None:
    """A call's id as text; None if it is missing."""
    return None if given is None else str(given)
