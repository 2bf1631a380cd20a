"""POST /tokenize and /detokenize, as in vLLM and llama-server, and llama-server's /apply-template."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Request
from pydantic import BeforeValidator, ConfigDict, Field

from forerun.server.protocols.conversation import ConversationFields, Messages, conversation
from forerun.server.protocols.errors import invalid
from forerun.server.protocols.fields import MAX_TOKENS, Fields, Name, TokenId, has, whole
from forerun.server.protocols.tools import function_tools, tool_use
from forerun.server.request_state import state_of
from forerun.server.routes.strict_route import REFUSALS, StrictRoute, service_for

ONE_OF_THREE: Final[Any] = [has("prompt"), has("messages"), has("content")]
router = APIRouter(route_class=StrictRoute, responses=REFUSALS)


class TokenizeRequest(ConversationFields):
    """POST /tokenize: a text, or messages to format with the chat template.

    Args:
        content: the text, in llama-server's form.
        add_special: llama-server's name for add_special_tokens, of which the default is false.
        with_pieces: also give the text of each token.
    """

    model_config = ConfigDict(json_schema_extra={"oneOf": ONE_OF_THREE})
    model: Name | None = None
    prompt: str | None = None
    messages: Messages | None = None  # type: ignore[assignment]
    content: str | None = None
    add_special_tokens: bool = True
    add_special: bool = False
    with_pieces: bool = False


class DetokenizeRequest(Fields):
    """POST /detokenize."""

    model: Name | None = None
    tokens: Annotated[list[TokenId], Field(max_length=MAX_TOKENS, fail_fast=True), BeforeValidator(whole)]


class TemplateRequest(ConversationFields):
    """POST /apply-template: messages to format with the chat template."""

    model: Name | None = None


@router.post("/tokenize")
async def tokenize(request: Request, asked: TokenizeRequest) -> dict[str, Any]:
    """The ids of a text, or of a conversation."""
    service = await service_for(request, asked.model)
    if [asked.prompt, asked.messages, asked.content].count(None) != 2:
        raise invalid("Give one of prompt, messages and content.", param="prompt")
    reader = service.prompts
    tools, _ = function_tools(asked.tools or ())
    async with reader.turn(state_of(request.scope).owner):
        if asked.messages is not None:
            chat, _ = conversation(asked, tool_use(tools, "auto"))
            ids = (await reader.rendered(chat)).ids
        elif asked.content is not None:
            ids = await reader.text(asked.content, add_special_tokens=asked.add_special)
        else:
            ids = await reader.text(asked.prompt or "", add_special_tokens=asked.add_special_tokens)
        told = {"count": len(ids), "max_model_len": service.engine.max_length}
        if not asked.with_pieces:
            return {**told, "tokens": ids}
        return {**told, "tokens": [{"id": id_, "piece": await reader.decode((id_,))} for id_ in ids]}


@router.post("/detokenize")
async def detokenize(request: Request, asked: DetokenizeRequest) -> dict[str, str]:
    """The text of these ids, under vLLM's name and llama-server's."""
    service = await service_for(request, asked.model)
    service.prompts.require_vocabulary(asked.tokens, param="tokens")
    async with service.prompts.turn(state_of(request.scope).owner):
        text = await service.prompts.decode(asked.tokens)
    return {"prompt": text, "content": text}


@router.post("/apply-template")
async def apply_template(request: Request, asked: TemplateRequest) -> dict[str, str]:
    """A conversation as the chat template formats it."""
    service = await service_for(request, asked.model)
    chat, _ = conversation(asked, tool_use(function_tools(asked.tools or ())[0], "auto"))
    async with service.prompts.turn(state_of(request.scope).owner):
        return {"prompt": (await service.prompts.rendered(chat)).text}
