"""Turns a request and its prompts into the engine's own calls."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from forerun.core.config import SamplingParams, seed_of_text
from forerun.server.protocols.errors import invalid
from forerun.server.protocols.generation_request import GenerationRequest
from forerun.server.work.engine_call import EngineCall, Prompt
from forerun.server.work.service import Service

MAX_PROMPT_LOGPROBS: Final = 2**19  # of one request; each takes 100 bytes or more
MAX_CHOICES_MESSAGE: Final = "Too many texts for one request: n times the number of prompts must be at most {}."


def engine_calls(
    request: GenerationRequest, prompts: Sequence[Prompt], service: Service, *, owner: str
) -> list[EngineCall]:
    """The calls for all texts of a request; those of one prompt are adjacent.

    Raises:
        ApiError: a prompt or a token id in another field is invalid, or there are too many texts.
    """
    max_choices = service.config.max_choices
    if request.num_choices * len(prompts) > max_choices:
        raise invalid(MAX_CHOICES_MESSAGE.format(max_choices), param="n")
    reader = service.prompts
    engine = service.engine
    for name in ("logit_bias", "stop_token_ids"):
        reader.require_vocabulary(tuple(request.sampling.get(name, ())), param=name)
    require_few_logprobs(request, prompts)
    drafter = named_drafter(request, service)
    calls: list[EngineCall] = []
    for prompt in prompts:
        reader.require_prompt(prompt.ids, param=request.param)
        room = engine.max_length - len(prompt.ids)
        limit = room if request.limit is None else max(1, min(request.limit, room))
        params = sampling_of(request, prompt, engine.default_sampling, max_new_tokens=limit)
        others = replace(params, prompt_logprobs=None)  # the first text gives them
        calls += [
            EngineCall(
                prompt=prompt,
                params=with_own_seed(others if number else params, params.seed, number),
                drafter=drafter,
                owner=owner,
                only_reads=request.limit == 0,
                shows_progress=request.streams and request.shows_progress,
                # Not for streams: their reader uses the CPU during the text but not after it, so times would differ.
                times_plain=request.shows_details and not request.streams,
            )
            for number in range(request.num_choices)
        ]
    return calls


def require_few_logprobs(request: GenerationRequest, prompts: Sequence[Prompt]) -> None:
    """Raise ApiError if the log-probabilities of the prompts would take too much memory."""
    num_top = request.sampling.get("prompt_logprobs")
    num_tokens = sum(len(prompt.ids) for prompt in prompts)
    if num_top is not None and num_tokens * (num_top + 1) > MAX_PROMPT_LOGPROBS:
        raise invalid(
            f"Log-probabilities of {num_tokens} prompt tokens and of {num_top} others at each place are more than "
            f"{MAX_PROMPT_LOGPROBS}: ask for fewer at each place, or send fewer prompts at a time.",
            param=request.param,
        )


def with_own_seed(params: SamplingParams, seed: int | None, number: int) -> SamplingParams:
    """The parameters of one of several texts, each of which has its own seed; a random one if `seed` is None."""
    return params if seed is None else replace(params, seed=seed_of_text(seed, number))


def sampling_of(
    request: GenerationRequest, prompt: Prompt, default: SamplingParams, *, max_new_tokens: int
) -> SamplingParams:
    """The sampling parameters of a request. Fields that are left out have the model's defaults.

    Raises:
        ApiError: the answer cannot continue after the end that its grammar demands.
    """
    given = dict(request.sampling)
    if prompt.end_ids:
        given["stop_token_ids"] = (*given.get("stop_token_ids", ()), *prompt.end_ids)
    if prompt.max_thought_tokens is not None:
        given["max_thought_tokens"] = prompt.max_thought_tokens
    if prompt.grammar is not None:
        given["grammar"] = prompt.grammar
        if given.get("ignore_eos"):
            raise invalid("ignore_eos: an answer of a given form ends with the form: leave it out.", param="ignore_eos")
    return replace(
        SamplingParams() if given.get("temperature") == 0.0 else default, max_new_tokens=max_new_tokens, **given
    )


def named_drafter(request: GenerationRequest, service: Service) -> str | None:
    """Name of the drafter for this request; None for the one that the server was started with.

    Raises:
        ApiError: this drafter cannot be chosen per request.
    """
    name = request.drafter
    known = service.engine.drafters
    if name is None or name == service.drafter_name:
        return None
    if name not in known:
        raise invalid(f"forerun.drafter: choose {' or '.join(known)}, or leave it out.", param="forerun.drafter")
    return name
