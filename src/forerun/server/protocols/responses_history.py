"""Turns items of the Responses API into messages and tools for chat templates."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from forerun.server.protocols.errors import invalid
from forerun.server.protocols.generation_request import Tool
from forerun.server.protocols.sse import Body
from forerun.server.protocols.tools import function_tool, is_name, no_name
from forerun.server.protocols.unsupported import as_text, is_part, texts_of_parts

CUSTOM_INPUT: Final[Mapping[str, Any]] = {
    "type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"],
}  # fmt: skip
SEPARATOR: Final = "__"  # between a namespace and a tool's name, as in the names of MCP tools


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTool:
    """A tool in the client's form.

    Args:
        name: within its namespace.
        is_custom: it takes a text instead of JSON; the model is offered a function with one argument, `input`.
    """

    name: str
    namespace: str | None = None
    is_custom: bool = False


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """Tools in the form that the model sees.

    Args:
        own: the client's tool by the name that the model sees.
        ignored: names of kinds of tools that were left out.
    """

    tools: list[Tool] = field(default_factory=list)
    own: dict[str, OwnTool] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)


def offered_tools(given: Sequence[Body]) -> OfferedTools:
    """The tools of a request: functions, custom tools, and those in namespaces.

    Raises:
        ApiError: a tool has no name.
    """
    found = OfferedTools()
    for place, tool in enumerate(given):
        offer(found, place, tool, namespace=None)
    return found


def offer(found: OfferedTools, place: int, tool: Body, *, namespace: str | None) -> None:
    """Add a tool, or all of a namespace."""
    kind = tool.get("type", "function")
    name = tool.get("name")
    if kind == "namespace" and namespace is None:
        inner_tools = tool.get("tools")
        if not (
            is_name(name) and isinstance(inner_tools, list) and all(isinstance(item, dict) for item in inner_tools)
        ):
            raise invalid(f"tools.{place}: a namespace needs a name and a list of tools.", param=f"tools.{place}")
        for inner in inner_tools:
            offer(found, place, inner, namespace=name)
    elif kind in ("function", "custom"):
        is_custom = kind == "custom"
        if not is_name(name):
            raise no_name(place)
        full = joined(namespace, name)
        description = custom_description(tool) if is_custom else tool.get("description")
        parameters = CUSTOM_INPUT if is_custom else tool.get("parameters")
        found.tools.append(function_tool(full, description, parameters))
        found.own[full] = OwnTool(name=name, namespace=namespace, is_custom=is_custom)
    else:
        found.ignored.append(f"tools.{kind}")


def joined(namespace: Any, name: str) -> str:
    """The name of a tool for the model."""
    return f"{namespace}{SEPARATOR}{name}" if isinstance(namespace, str) and namespace else name


def custom_description(tool: Body) -> str:
    """A custom tool's description, with the grammar of its input."""
    description = str(tool.get("description") or "")
    format_ = tool.get("format")
    definition = format_.get("definition") if isinstance(format_, dict) else None
    if not isinstance(definition, str):
        return description
    return f"{description}\n\nThe input follows this grammar:\n{definition}".strip()


class ItemReader:
    """Reads items one by one into messages.

    Calls and reasoning are parts of one answer until another message comes.
    """

    def __init__(self) -> None:
        self.messages: list[Body] = []
        self.ignored: list[str] = []
        self._reasoning: list[str] = []

    def read(self, place: int, item: Body) -> None:
        """Add an item.

        Raises:
            ApiError: it is a message without a role.
        """
        match item:
            case {"type": "function_call", **rest}:
                self._call(rest, as_text(rest.get("arguments")) or "{}")
            case {"type": "custom_tool_call", **rest}:
                self._call(rest, json.dumps({"input": as_text(rest.get("input"))}))
            case {"type": "function_call_output" | "custom_tool_call_output", **rest}:
                content = self._text_of(rest.get("output"), is_result=True)
                self.messages.append({"role": "tool", "tool_call_id": rest.get("call_id"), "content": content})
            case {"type": "reasoning", **rest}:
                self._reasoning += reasoning_texts(rest)
            case {"role": str(role), **rest} if rest.get("type", "message") == "message":
                self._say(role, self._text_of(rest.get("content"), is_result=False))
            case {"type": str(kind)} if kind != "message":
                self.ignored.append(f"input.{kind}")
            case _:
                raise invalid(f"input.{place} is not a message and has no known type.", param=f"input.{place}")

    def _say(self, role: str, text: str) -> None:
        message = {"role": role, "content": text}
        self.messages.append({**message, **self._thoughts()} if role == "assistant" else message)

    def _call(self, item: Body, arguments: str) -> None:
        name = joined(item.get("namespace"), as_text(item.get("name")))
        call = {
            "id": item.get("call_id"),
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        last = self.messages[-1] if self.messages else {}
        if last.get("role") != "assistant" or self._reasoning:
            last = {"role": "assistant", "content": "", **self._thoughts()}
            self.messages.append(last)
        last.setdefault("tool_calls", []).append(call)

    def _text_of(self, content: Any, *, is_result: bool) -> str:
        """The text of an item's content or output, with notes in the place of images and files."""
        if isinstance(content, list) and (not is_result or all(map(is_part, content))):
            parts = [{"type": "text", **part} if "text" in part else part for part in content if isinstance(part, dict)]
            return "\n".join(texts_of_parts(parts, self.ignored, at="input", is_result=is_result))
        return as_text(content) if is_result or isinstance(content, str) else ""

    def _thoughts(self) -> Body:
        thoughts = self._reasoning
        self._reasoning = []
        return {"reasoning_content": "\n".join(thoughts)} if thoughts else {}


def reasoning_texts(item: Body) -> list[str]:
    """The texts of a reasoning item; its summary's if it has no others."""
    for name in ("content", "summary"):
        parts = item.get(name)
        texts = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
        if found := [text for text in texts if isinstance(text, str) and text]:
            return found
    return []
