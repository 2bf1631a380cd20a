"""Turns a request, its prompts and its settings into orders for the engine."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from fastapi import Request

from forerun.core.config import SamplingParams
from forerun.core.seeds import NUM_SEEDS, seed_of_text
from forerun.server.protocols.errors import invalid
from forerun.server.protocols.fields import ChatRequest, CompletionRequest
from forerun.server.routes.strict_route import owner_of, service_of
from forerun.server.work.job import Order
from forerun.server.work.service import Service

MAX_CHOICES_MESSAGE: Final = "Too many texts for one request: n times the number of prompts must be at most {}."
LEAST_TEMPERATURE: Final = 1e-4  # below this sampling is greedy, see SamplingParams
SAME_NAMED: Final = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "ignore_eos",
)  # fmt: skip


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
        seed = params.seed
        orders += [
            Order(
                prompt_ids=prompt_ids,
                # Each of several texts has its own seed.
                params=params if seed is None else replace(params, seed=seed_of_text(seed, number)),
                drafter=drafter,
                prediction=prediction,
                owner=owner_of(request),
                # Not for streams: their reader uses the CPU during the text but not after it, so times would differ.
                times_plain=asked.options.details and not asked.stream,
            )
            for number in range(num_choices)
        ]
    return orders


def settings_of(
    request: ChatRequest | CompletionRequest, default: SamplingParams, *, max_new_tokens: int
) -> SamplingParams:
    """The sampling parameters of a request. Fields that are left out have the model's defaults."""
    given = {name: value for name in SAME_NAMED if (value := getattr(request, name)) is not None}
    if "top_k" in given:
        given["top_k"] = max(0, given["top_k"])
    is_greedy = given.get("temperature", 1.0) < LEAST_TEMPERATURE
    if is_greedy:
        given["temperature"] = 0.0
    stop = request.stop or ()
    return replace(
        SamplingParams() if is_greedy else default,
        max_new_tokens=max_new_tokens,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        logit_bias={int(token_id): bias for token_id, bias in (request.logit_bias or {}).items()},
        seed=None if request.seed is None else request.seed % NUM_SEEDS,  # negative seeds are allowed
        logprobs=request.num_logprobs(),
        **given,
    )


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
