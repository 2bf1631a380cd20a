"""Conversations in the form of OpenAI's API, for chat and tokenize."""

from typing import Annotated, Any, Final

from pydantic import Field, StringConstraints, model_validator

from forerun.server.protocols.described import CHAT_TOOL, items
from forerun.server.protocols.errors import invalid
from forerun.server.protocols.fields import AllParts, Fields, Object, Objects
from forerun.server.protocols.generation_request import Chat, ToolUse
from forerun.server.protocols.sse import Body
from forerun.server.protocols.unsupported import as_text, is_part, require_readable, texts_of_parts

MAX_MESSAGES: Final = 2048
RESULT_ROLES: Final = ("tool", "function")


class CalledFunction(Fields):
    """The function of an earlier call."""

    name: Annotated[str, StringConstraints(max_length=256)] | None = None
    arguments: Any = None


class EarlierCall(Fields):
    """A tool call in an earlier answer."""

    id: str | None = None
    function: CalledFunction

    @model_validator(mode="before")
    @classmethod
    def _read_custom(cls, given: Any) -> Any:
        """A custom tool's call becomes a function's with the argument `input`, as in the Responses API."""
        match given:
            case {"custom": {"name": name, **custom}, **rest} if "function" not in rest:
                return {**rest, "function": {"name": name, "arguments": {"input": custom.get("input")}}}
        return given


class ChatMessage(Fields):
    """One message. Additional fields are passed to the chat template."""

    role: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    content: str | AllParts | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_call_id: str | None = None
    tool_calls: Annotated[list[EarlierCall], Field(max_length=256)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _write_result(cls, given: Any) -> Any:
        """A tool's result that is neither a text nor a list of parts is given as JSON."""
        if isinstance(given, dict) and given.get("role") in RESULT_ROLES:
            content = given.get("content")
            if not (isinstance(content, list) and all(map(is_part, content))):
                return {**given, "content": as_text(content)}
        return given


Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


class ConversationFields(Fields):
    """A conversation, and how the chat template formats it."""

    messages: Messages
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Annotated[Object, Field(max_length=64)] | None = None
    tools: Annotated[Objects, items(CHAT_TOOL)] | None = None


def conversation(
    request: ConversationFields, tools: ToolUse, *, effort: str | None = None, thinks: bool | None = None
) -> tuple[Chat, list[str]]:
    """The conversation of a request, and the names of parts that the model cannot read.

    Raises:
        ApiError: it should both continue the last message and begin another one, or the last one is only an image.
    """
    continues = bool(request.continue_final_message)
    if continues and request.add_generation_prompt:
        raise invalid(
            "continue_final_message continues the last message, and add_generation_prompt begins another one: set "
            "only one of them.",
            param="continue_final_message",
        )
    variables = dict(request.chat_template_kwargs or {})
    if request.add_generation_prompt is not None:
        variables["add_generation_prompt"] = request.add_generation_prompt
    last = request.messages[-1]
    before = request.messages[-2] if len(request.messages) > 1 else None
    is_attached = before is not None and before.role in RESULT_ROLES  # by an agent, as a part of the tool's result
    if last.role == "user" and isinstance(last.content, list) and not is_attached:
        require_readable([part.model_dump() for part in last.content], f"messages.{len(request.messages) - 1}.content")
    ignored = list[str]()
    messages = [message_body(message, ignored) for message in request.messages]
    chat = Chat(
        messages=messages, tool_use=tools, variables=variables, effort=effort, thinks=thinks, continues=continues
    )
    return chat, ignored


def message_body(message: ChatMessage, ignored: list[str]) -> Body:
    """A message for the chat template, with texts as its parts; adds the names of other parts to `ignored`."""
    body = message.model_dump(exclude_unset=True)
    for call in body.get("tool_calls") or ():
        call["function"]["name"] = call["function"].get("name") or ""
    if isinstance(body.get("content"), list):
        is_result = message.role in RESULT_ROLES
        texts = texts_of_parts(body["content"], ignored, at="messages.content", is_result=is_result)
        body["content"] = [{"type": "text", "text": text} for text in texts]
    return body
