"""Requests to peers: only what every one of them understands, and what fits."""

from typing import Any

import pytest

from forerun import ConfigError, ContextOverflowError, SamplingParams
from forerun.bench.peers.messages import NUM_SEEDS, Answer, PeerError, PeerRequest, from_line, to_line


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


def test_a_message_survives_the_way() -> None:
    answer = Answer(token_ids=(1, 2), emitted=(2,), emitted_at_s=(0.1,))
    kind, values = from_line(to_line("answer", answer))
    assert (kind, Answer(**values)) == ("answer", answer)


@pytest.mark.parametrize("line", [b"", b"noise\n", b"[1]\n", b"{}\n", b"3\n"])
def test_a_line_that_is_no_message_is_an_error(line: bytes) -> None:
    with pytest.raises(PeerError, match="where a message was due"):
        from_line(line)
