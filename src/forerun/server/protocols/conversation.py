"""Conversations in the form of OpenAI's API, for chat and tokenize."""

from typing import Annotated, Final

from pydantic import Field, StringConstraints

from forerun.server.protocols.asked import Chat, ToolUse
from forerun.server.protocols.described import CHAT_TOOL, items
from forerun.server.protocols.errors import invalid
from forerun.server.protocols.fields import Content, Fields, Object, Objects, plain_content
from forerun.server.protocols.sse import Body

MAX_MESSAGES: Final = 2048


class CalledFunction(Fields):
    """The function of an earlier call."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    arguments: str | Object | None = None


class EarlierCall(Fields):
    """A tool call in an earlier answer."""

    id: str | None = None
    function: CalledFunction


class ChatMessage(Fields):
    """One message. Additional fields are passed to the chat template."""

    role: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    content: Content = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_call_id: str | None = None
    tool_calls: Annotated[list[EarlierCall], Field(max_length=256)] | None = None


Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


class ConversationFields(Fields):
    """A conversation, and how the chat template formats it."""

    messages: Messages
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Annotated[Object, Field(max_length=64)] | None = None
    tools: Annotated[Objects, items(CHAT_TOOL)] | None = None


def conversation(
    asked: ConversationFields, tools: ToolUse, *, effort: str | None = None, thinks: bool | None = None
) -> Chat:
    """The conversation of a request.

    Raises:
        ApiError: it should both continue the last message and begin another one.
    """
    continues = bool(asked.continue_final_message)
    if continues and asked.add_generation_prompt:
        raise invalid(
            "continue_final_message continues the last message, and add_generation_prompt begins another one: set "
            "only one of them.",
            param="continue_final_message",
        )
    variables = dict(asked.chat_template_kwargs or {})
    if asked.add_generation_prompt is not None:
        variables["add_generation_prompt"] = asked.add_generation_prompt
    messages = [message_body(message) for message in asked.messages]
    return Chat(
        messages=messages, tool_use=tools, variables=variables, effort=effort, thinks=thinks, continues=continues
    )


def message_body(message: ChatMessage) -> Body:
    """A message for the chat template, with text parts of one kind."""
    body = message.model_dump(exclude_unset=True)
    if "content" in body:
        body["content"] = plain_content(message.content)
    return body
