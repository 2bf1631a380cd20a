"""Turns a request and its prompts into orders for the engine."""

from dataclasses import replace
from typing import Final

from fastapi import Request

from forerun.core.config import SamplingParams, seed_of_text
from forerun.server.protocols.asked import Asked
from forerun.server.protocols.errors import invalid
from forerun.server.routes.strict_route import owner_of, service_of
from forerun.server.work.chats import ReadPrompts
from forerun.server.work.continuing import Continuing
from forerun.server.work.job import Order
from forerun.server.work.service import Service

MAX_CHOICES_MESSAGE: Final = "Too many texts for one request: n times the number of prompts must be at most {}."


def orders_for(request: Request, asked: Asked, read: ReadPrompts, continuing: Continuing | None = None) -> list[Order]:
    """Orders for all texts of a request; those of one prompt are adjacent.

    Args:
        continuing: the part of the answer that was sent is its prediction, so that it is soon written again.

    Raises:
        ApiError: a prompt or a token id in another field is invalid, or there are too many texts.
    """
    service = service_of(request)
    num_choices = asked.num_choices
    most = service.config.max_choices
    if num_choices * len(read.ids) > most:
        raise invalid(MAX_CHOICES_MESSAGE.format(most), param="n")
    reader = service.prompts
    engine = service.engine
    for name in ("logit_bias", "stop_token_ids"):
        reader.require_vocabulary(tuple(asked.sampling.get(name, ())), param=name)
    drafter = named_drafter(asked, service)
    sent_ids = {} if continuing is None else continuing.sent_ids()
    orders: list[Order] = []
    for prompt_ids in read.ids:
        reader.require_prompt(prompt_ids, param=asked.param)
        room = engine.max_length - len(prompt_ids)
        limit = room if asked.limit is None else max(1, min(asked.limit, room))
        params = settings_of(asked, read, engine.default_sampling, max_new_tokens=limit)
        seed = params.seed
        first = 0
        if seed is None and continuing is not None:  # as for a random seed, equal prompts have different texts
            seed = continuing.seed
            first = len(orders)
        orders += [
            Order(
                prompt_ids=prompt_ids,
                # Each of several texts has its own seed.
                params=params if seed is None else replace(params, seed=seed_of_text(seed, first + number)),
                drafter=drafter,
                prediction=sent_ids.get(len(orders) + number) or read.prediction,
                owner=owner_of(request),
                shown_tokens=read.shown_tokens,
                thoughts=read.thoughts,
                only_reads=asked.limit == 0,
                # Not for streams: their reader uses the CPU during the text but not after it, so times would differ.
                times_plain=asked.shows_details and not asked.streams,
            )
            for number in range(num_choices)
        ]
    return orders


def settings_of(asked: Asked, read: ReadPrompts, default: SamplingParams, *, max_new_tokens: int) -> SamplingParams:
    """The sampling parameters of a request. Fields that are left out have the model's defaults.

    Raises:
        ApiError: the answer cannot continue after the end that its grammar demands.
    """
    given = dict(asked.sampling)
    if read.end_ids:
        given["stop_token_ids"] = (*given.get("stop_token_ids", ()), *read.end_ids)
    if read.grammar is not None:
        given["grammar"] = read.grammar
        if given.get("ignore_eos"):
            raise invalid("ignore_eos: an answer of a given form ends with the form: leave it out.", param="ignore_eos")
    return replace(
        SamplingParams() if given.get("temperature") == 0.0 else default, max_new_tokens=max_new_tokens, **given
    )


def named_drafter(asked: Asked, service: Service) -> str | None:
    """Name of the drafter for this request; None for the one that the server was started with.

    Raises:
        ApiError: this drafter cannot be chosen per request.
    """
    name = asked.drafter
    known = service.engine.drafters
    if name is None or name == service.drafter_name:
        return None
    if name not in known:
        raise invalid(f"forerun.drafter: choose {' or '.join(known)}, or leave it out.", param="forerun.drafter")
    return name
