"""POST /v1/chat/completions and /v1/completions."""

from typing import Any, Final

from fastapi import APIRouter, Request, Response

from forerun.server.protocols.errors import invalid
from forerun.server.protocols.fields import ChatMessage, ChatRequest, CompletionRequest
from forerun.server.protocols.unsupported import UNSUPPORTED, refuse_unsupported
from forerun.server.routes.answering import Answering
from forerun.server.routes.orders import orders_for
from forerun.server.routes.strict_route import REFUSALS, TEXT_ANSWER, StrictRoute, owner_of, service_for

router = APIRouter(route_class=StrictRoute, responses=REFUSALS)
DEFAULT_TOKENS: Final = 16  # OpenAI's, of a completion


@router.post("/v1/chat/completions", response_class=Response, responses=TEXT_ANSWER)
async def chat_completions(request: Request, asked: ChatRequest) -> Response:
    """Answer a conversation."""
    refuse_unsupported(asked.others)
    service = await service_for(request, asked.model)
    service.require_room(owner_of(request))
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
    async with service.prompts.turn(owner_of(request)):
        prompt_ids, rendered = await service.prompts.chat(messages_of(asked.messages), variables, continues=continues)
        prediction = await service.prompts.prediction(asked.predicted())
    wanted = asked.max_completion_tokens or asked.max_tokens
    orders = orders_for(request, asked, [prompt_ids], wanted=wanted, param="messages", prediction=prediction)
    unknown = dict.fromkeys(service.prompts.unknown_variables(asked.chat_template_kwargs or {}))
    splits = service.splits_thoughts and not continues  # a continued text is an answer, not reasoning
    answering = Answering(request, asked, orders, ignored=asked.others | unknown, rendered=rendered if splits else None)
    return await answering.respond()


@router.post("/v1/completions", response_class=Response, responses=TEXT_ANSWER)
async def completions(request: Request, asked: CompletionRequest) -> Response:
    """Continue texts."""
    refuse_unsupported(asked.others)
    if asked.echo and asked.logprobs is not None:
        name = "echo with logprobs"
        raise invalid(f"{name} is not supported by this version.", param=name, code=UNSUPPORTED)
    service = await service_for(request, asked.model)
    service.require_room(owner_of(request))
    reader, prompts = service.prompts, asked.prompts()
    async with reader.turn(owner_of(request)):
        prompt_ids = [await reader.text(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
        orders = orders_for(request, asked, prompt_ids, wanted=asked.max_tokens or DEFAULT_TOKENS, param="prompt")
        echoes = None
        if asked.echo:
            texts = [prompt if isinstance(prompt, str) else await reader.decode(prompt) for prompt in prompts]
            echoes = [text for text in texts for _ in range(asked.num_choices)]
    return await Answering(request, asked, orders, ignored=asked.others, echoes=echoes).respond()


def messages_of(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    """The messages as dictionaries for the chat template."""
    return [message.model_dump(exclude_unset=True) for message in messages]
