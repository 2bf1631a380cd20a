"""POST /tokenize and /detokenize, as vLLM has them."""

from typing import Any

from fastapi import APIRouter, Request

from forerun.server.protocols.errors import invalid
from forerun.server.protocols.fields import DetokenizeRequest, TokenizeRequest
from forerun.server.routes.strict_route import REFUSALS, StrictRoute, owner_of, service_for
from forerun.server.routes.texts import messages_of

router = APIRouter(route_class=StrictRoute, responses=REFUSALS)


@router.post("/tokenize")
async def tokenize(request: Request, asked: TokenizeRequest) -> dict[str, Any]:
    """The ids of a text, or of a conversation."""
    service = await service_for(request, asked.model)
    if (asked.prompt is None) == (asked.messages is None):
        raise invalid("Give either prompt or messages.", param="prompt")
    variables = dict(asked.chat_template_kwargs or {})
    if asked.add_generation_prompt is not None:
        variables["add_generation_prompt"] = asked.add_generation_prompt
    async with service.prompts.turn(owner_of(request)):
        if asked.messages is None:
            ids = await service.prompts.text(asked.prompt or "", add_special_tokens=asked.add_special_tokens)
        else:
            ids, _ = await service.prompts.chat(messages_of(asked.messages), variables)
    return {"count": len(ids), "max_model_len": service.engine.max_length, "tokens": ids}


@router.post("/detokenize")
async def detokenize(request: Request, asked: DetokenizeRequest) -> dict[str, str]:
    """The text of these ids."""
    service = await service_for(request, asked.model)
    service.prompts.require_vocabulary(asked.tokens, param="tokens")
    async with service.prompts.turn(owner_of(request)):
        return {"prompt": await service.prompts.decode(asked.tokens)}
