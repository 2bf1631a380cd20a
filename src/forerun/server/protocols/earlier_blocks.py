"""Turns Anthropic's blocks of earlier messages into messages for chat templates."""

import json
from collections.abc import Sequence
from typing import Any, Final

from forerun.server.protocols.errors import invalid
from forerun.server.protocols.sse import Body
from forerun.server.protocols.unsupported import UNSUPPORTED

BILLING: Final = "x-anthropic-billing-header:"  # Claude Code's first line, which differs in every request
NO_IMAGE: Final = "(This result has a part that is not text, which this model cannot read.)"


def system_text(system: str | Sequence[Body]) -> str:
    """The system prompt, without the line that differs in every request, so that it is found in the cache."""
    if isinstance(system, str):
        first, _, rest = system.partition("\n")
        return rest.lstrip("\n") if first.startswith(BILLING) else system
    texts = [text for block in system if isinstance(text := block.get("text"), str)]
    return "\n\n".join(text for text in texts if text and not text.startswith(BILLING))


def messages_of(given: Sequence[tuple[str, str | Sequence[Body]]]) -> tuple[list[Body], list[str]]:
    """Messages from pairs of role and content, and the names of block types that were left out.

    The results of tools come before the user's text in the same message, so that they follow the calls.

    Raises:
        ApiError: a block is an image or a document, which this model cannot read.
    """
    messages: list[Body] = []
    ignored: list[str] = []
    for place, (role, content) in enumerate(given):
        if isinstance(content, str):
            messages.append({"role": role, "content": content})
        elif role == "assistant":
            messages.append(assistant_message(content, ignored))
        else:
            messages += results_of(content)
            texts = texts_of(content, place, ignored)
            if texts or not content:
                messages.append({"role": role, "content": "\n".join(texts)})
    return messages, ignored


def assistant_message(blocks: Sequence[Body], ignored: list[str]) -> Body:
    """An earlier answer."""
    texts, thoughts, calls = list[str](), list[str](), list[Body]()
    for block in blocks:
        match block:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "thinking", "thinking": str(thought)}:
                thoughts.append(thought)
            case {"type": "tool_use", "name": str(name), **rest}:
                arguments = rest.get("input")
                function = {"name": name, "arguments": json.dumps({} if arguments is None else arguments)}
                calls.append({"id": str(rest.get("id", "")), "type": "function", "function": function})
            case {"type": "redacted_thinking"}:
                pass
            case _:
                ignored.append(name_of(block))
    message: Body = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def results_of(blocks: Sequence[Body]) -> list[Body]:
    """The results of tools in a user's message."""
    return [
        {"role": "tool", "tool_call_id": str(block.get("tool_use_id", "")), "content": result_text(block)}
        for block in blocks
        if block.get("type") == "tool_result"
    ]


def result_text(block: Body) -> str:
    """A tool's result, as text."""
    content: Any = block.get("content")
    if isinstance(content, str):
        return content
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    texts = []
    for part in parts:
        match part:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "tool_reference", "tool_name": str(name)}:
                texts.append(f"Tool: {name}")
            case _:
                texts.append(NO_IMAGE)
    return "\n".join(texts)


def texts_of(blocks: Sequence[Body], place: int, ignored: list[str]) -> list[str]:
    """The user's texts, without the results of tools."""
    texts = []
    for block in blocks:
        match block:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "document", "source": {"type": "text", "data": str(text)}}:
                texts.append(text)
            case {"type": "image" | "document" as kind}:
                raise invalid(
                    f"messages.{place}.content: {kind} blocks are not supported: this model reads text only.",
                    param=f"messages.{place}.content", code=UNSUPPORTED,
                )  # fmt: skip
            case {"type": "tool_result"}:
                pass
            case _:
                ignored.append(name_of(block))
    return texts


def name_of(block: Body) -> str:
    return f"messages.content.{block.get('type', '')}"
