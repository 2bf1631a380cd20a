"""Turns tools and tool_choice as clients send them into the form for chat templates and grammars."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeGuard

from forerun.server.protocols.errors import ApiError, invalid
from forerun.server.protocols.generation_request import Tool, ToolChoice, ToolUse

NO_PARAMETERS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}
MAX_NAME: Final = 256  # characters
SPACES: Final = r"\s\x1c-\x1f\x85\ufeff"  # of Python and of the dialects of regular expressions in JSON schemas
NAME_PATTERN: Final = rf"[^{SPACES}<>]([^\r\n<>]*[^{SPACES}<>])?"


def tool_use(tools: Sequence[Tool], choice: Any, *, is_parallel: bool = True, param: str = "tool_choice") -> ToolUse:
    """The use of these tools that a `tool_choice` in OpenAI's form allows.

    Raises:
        ApiError: it is unknown, names a tool that is not given, or demands a call without tools.
    """
    kind, names = read_choice(choice, param)
    known = {tool["function"]["name"] for tool in tools}
    unknown = sorted((names or frozenset()) - known)
    if unknown:
        raise invalid(f"{param} names the tool {unknown[0][:80]}, which is not one of tools.", param=param)
    if kind == "required" and not (tools if names is None else names):
        raise invalid(f"{param} demands a call, but there are no function tools.", param=param)
    return ToolUse(shown=tools, choice=kind, names=names, is_parallel=is_parallel)


def read_choice(choice: Any, param: str) -> tuple[ToolChoice, frozenset[str] | None]:
    """The kind of a tool_choice, and the names of the tools that it allows; None: all."""
    match choice:
        case None | "auto":
            return "auto", None
        case "none":
            return "none", None
        case "required" | "any":
            return "required", None
        case {"type": "allowed_tools", **rest}:
            inner = rest.get("allowed_tools")
            given = inner if isinstance(inner, dict) else rest  # nested in chat, flat in the Responses API
            allowed = given.get("tools")
            if isinstance(allowed, list) and not isinstance(given.get("mode"), dict):
                found = [name_of(item) for item in allowed if isinstance(item, dict)]
                mode, _ = read_choice(given.get("mode"), param)
                return mode, frozenset(name for name in found if name)
        case {"type": "function" | "custom" | "tool"} if name := name_of(choice):
            return "required", frozenset((name,))
    raise invalid(
        f'{param} must be auto, none, required, {{"type": "function", "function": {{"name": ...}}}} or allowed_tools.',
        param=param,
    )


def name_of(tool: Mapping[str, Any]) -> str | None:
    """The name in a function or custom tool, nested as in chat or flat as in the Responses API."""
    inner = tool.get("function") or tool.get("custom")
    name = inner.get("name") if isinstance(inner, dict) else tool.get("name")
    return name if isinstance(name, str) else None


def function_tools(tools: Sequence[Mapping[str, Any]]) -> tuple[list[Tool], list[str]]:
    """The function tools of a chat request, and the names of the others, which are left out.

    Raises:
        ApiError: a function tool has no name.
    """
    found: list[Tool] = []
    ignored = []
    for place, tool in enumerate(tools):
        kind = tool.get("type")
        if isinstance(kind, str) and kind != "function":
            ignored.append(f"tools.{kind}")
            continue
        function = tool.get("function", tool)
        if not (isinstance(function, dict) and is_name(function.get("name"))):
            raise no_name(place)
        found.append(function_tool(function["name"], function.get("description"), function.get("parameters")))
    return found, ignored


def is_name(name: Any) -> TypeGuard[str]:
    """True for a tool's name that can be read back from every form of calls."""
    return isinstance(name, str) and len(name) <= MAX_NAME and re.fullmatch(NAME_PATTERN, name) is not None


def function_tool(name: str, description: Any, parameters: Any) -> Tool:
    """A tool in OpenAI's form, with the keys in its usual order, which models were trained on."""
    function: dict[str, Any] = {"name": name}
    if isinstance(description, str):
        function["description"] = description
    function["parameters"] = parameters if isinstance(parameters, dict) and parameters else dict(NO_PARAMETERS)
    return {"type": "function", "function": function}


def no_name(place: int) -> ApiError:
    needed = f"a name of 1 to {MAX_NAME} characters, without < and >, line breaks, and spaces around it"
    return invalid(f"tools.{place} has no function with {needed}.", param=f"tools.{place}")
