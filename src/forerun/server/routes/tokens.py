"""POST /tokenize and /detokenize, as in vLLM and llama-server, and llama-server's /apply-template."""

from typing import Any

from fastapi import APIRouter, Request

from forerun.server.protocols.conversation import conversation
from forerun.server.protocols.errors import invalid
from forerun.server.protocols.tokens import DetokenizeRequest, TemplateRequest, TokenizeRequest
from forerun.server.protocols.tools import function_tools, tool_use
from forerun.server.request_state import state_of
from forerun.server.routes.strict_route import REFUSALS, StrictRoute, service_for

router = APIRouter(route_class=StrictRoute, responses=REFUSALS)


@router.post("/tokenize")
async def tokenize(request: Request, asked: TokenizeRequest) -> dict[str, Any]:
    """The ids of a text, or of a conversation."""
    service = await service_for(request, asked.model)
    if [asked.prompt, asked.messages, asked.content].count(None) != 2:
        raise invalid("Give one of prompt, messages and content.", param="prompt")
    reader, (tools, _) = service.prompts, function_tools(asked.tools or ())
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
