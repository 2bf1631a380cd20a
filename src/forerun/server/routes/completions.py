"""POST /v1/completions."""

from typing import Final

from fastapi import APIRouter, Request, Response

from forerun.server.protocol.requests import CompletionRequest, refuse_missing_parts
from forerun.server.protocol.unsupported import refuse_unsupported
from forerun.server.routes.answering import Answering
from forerun.server.routes.orders import orders_for
from forerun.server.routes.strict_route import REFUSALS, TEXT_ANSWER, StrictRoute, owner_of, service_for

router = APIRouter(route_class=StrictRoute, responses=REFUSALS)
DEFAULT_TOKENS: Final = 16  # OpenAI's


@router.post("/v1/completions", response_class=Response, responses=TEXT_ANSWER)
async def completions(request: Request, asked: CompletionRequest) -> Response:
    """Continue texts."""
    refuse_unsupported(asked.others)
    refuse_missing_parts(asked)
    service = await service_for(request, asked.model)
    service.require_room(request.scope["state"]["owner"])
    reader, prompts = service.prompts, asked.prompts()
    async with reader.turn(owner_of(request)):
        prompt_ids = [await reader.text(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
        orders = orders_for(request, asked, prompt_ids, wanted=asked.max_tokens or DEFAULT_TOKENS, param="prompt")
        echoes = None
        if asked.echo:
            texts = [prompt if isinstance(prompt, str) else await reader.decode(prompt) for prompt in prompts]
            echoes = [text for text in texts for _ in range(asked.num_choices)]
    return await Answering(request, asked, orders, ignored=asked.others, echoes=echoes).respond()
