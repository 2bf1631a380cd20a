"""Converts a request's settings to the engine's sampling parameters."""

from dataclasses import replace
from typing import Final

from forerun.core.config import SamplingParams
from forerun.core.seeds import NUM_SEEDS, seed_of_text
from forerun.server.protocol.requests import ChatRequest, CompletionRequest

LEAST_TEMPERATURE: Final = 1e-4  # below this sampling is greedy, see SamplingParams
SAME_NAMED: Final = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "ignore_eos",
)  # fmt: skip


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


def of_choice(params: SamplingParams, number: int) -> SamplingParams:
    """The settings of one of several texts, each with its own seed."""
    return params if params.seed is None else replace(params, seed=seed_of_text(params.seed, number))
