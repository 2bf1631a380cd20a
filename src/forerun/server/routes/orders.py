"""Turns a request and its prompts into orders for the engine."""

from collections.abc import Sequence
from typing import Final

from fastapi import Request

from forerun.server.protocol.errors import invalid
from forerun.server.protocol.requests import ChatRequest, CompletionRequest
from forerun.server.routes.strict_route import owner_of, service_of
from forerun.server.work.job import Order
from forerun.server.work.sampling_settings import of_choice, settings_of
from forerun.server.work.service import Service

MAX_CHOICES_MESSAGE: Final = "Too many texts for one request: n times the number of prompts must be at most {}."


def orders_for(
    request: Request,
    asked: ChatRequest | CompletionRequest,
    prompts: Sequence[Sequence[int]],
    *,
    wanted: int | None,
    param: str,
    prediction: Sequence[int] = (),
) -> list[Order]:
    """Orders for all texts of a request; those of one prompt are adjacent.

    Args:
        wanted: maximum number of new tokens, limited to what fits into the context; None: as many as fit.
        param: the request's field with the prompts, for errors.
        prediction: token ids that the texts probably resemble.

    Raises:
        ApiError: a prompt or a token id in another field is invalid, or there are too many texts.
    """
    service = service_of(request)
    num_choices, most = asked.num_choices, service.config.max_choices
    if num_choices * len(prompts) > most:
        raise invalid(MAX_CHOICES_MESSAGE.format(most), param="n")
    reader, engine = service.prompts, service.engine
    reader.require_vocabulary([int(key) for key in asked.logit_bias or ()], param="logit_bias")
    reader.require_vocabulary(asked.stop_token_ids or (), param="stop_token_ids")
    drafter = named_drafter(asked, service)
    orders = []
    for prompt_ids in prompts:
        reader.require_prompt(prompt_ids, param=param)
        room = engine.max_length - len(prompt_ids)
        params = settings_of(
            asked, engine.default_sampling, max_new_tokens=room if wanted is None else min(wanted, room)
        )
        orders += [
            Order(
                prompt_ids=prompt_ids,
                params=of_choice(params, number),
                drafter=drafter,
                prediction=prediction,
                owner=owner_of(request),
                # Not for streams: their reader uses the CPU during the text but not after it, so times would differ.
                times_plain=asked.options.details and not asked.stream,
            )
            for number in range(num_choices)
        ]
    return orders


def named_drafter(asked: ChatRequest | CompletionRequest, service: Service) -> str | None:
    """Name of the drafter for this request; None for the one that the server was started with.

    Raises:
        ApiError: this drafter cannot be chosen per request.
    """
    name, known = asked.options.drafter, service.engine.drafters
    if name is None or name == service.drafter_name:
        return None
    if name not in known:
        raise invalid(f"forerun.drafter: choose {' or '.join(known)}, or leave it out.", param="forerun.drafter")
    return name
