"""Requests to peers: only what every one of them understands, and what fits."""

from typing import Any

import pytest

from forerun import ConfigError, ContextOverflowError, SamplingParams
from forerun_lab.bench.peers.messages import NUM_SEEDS, PeerRequest


def request(prompt: tuple[int, ...] = (1, 2), **params: Any) -> PeerRequest:
    return PeerRequest.of(prompt, SamplingParams(**({"max_new_tokens": 4} | params)), max_length=8)


@pytest.mark.parametrize(
    "params",
    [{"repetition_penalty": 1.1}, {"stop": ("x",)}, {"logit_bias": {1: 2.0}}, {"stop_token_ids": (3,)}],
    ids=lambda params: next(iter(params)),
)
def test_what_not_every_peer_knows_is_refused_by_name(params: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(params))):
        request(**params)


def test_a_text_that_does_not_fit_is_refused() -> None:
    assert request(max_new_tokens=6).max_new_tokens == 6
    with pytest.raises(ContextOverflowError, match="context of 8"):
        request(max_new_tokens=7)


@pytest.mark.parametrize(("prompt", "num"), [((), 4), ((1,), None)])
def test_a_prompt_and_a_limit_are_needed(prompt: tuple[int, ...], num: int | None) -> None:
    with pytest.raises(ConfigError, match="needs a prompt"):
        request(prompt, max_new_tokens=num)


def test_any_seed_becomes_one_of_32_bits_and_none_a_fresh_one() -> None:
    assert request(seed=7).seed == 7
    assert request(seed=2**62 + 5).seed < NUM_SEEDS
    assert request(seed=None).seed != request(seed=None).seed
