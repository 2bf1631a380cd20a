"""Every field of a request, in every way to ask: what comes is what the engine itself writes with these settings."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from forerun import Engine, Generation, SamplingParams
from tests.marks import in_turn
from tests.server.openai_matrix.ways import CHAT, PROMPT, WAYS, Api, Way
from tests.server.serving import ENGINE, Served

NUM_TOKENS = 16
WARM = {"temperature": 0.9, "seed": 11}
# The fields of a request by name, and the engine's own settings where these are called otherwise.
FIELDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing but the length": ({}, {}),
    "greedy": ({"temperature": 0, "top_p": 0.5}, {"temperature": 0.0, "top_p": 1.0}),
    "temperature and seed": (WARM, {}),
    "another seed": ({**WARM, "seed": 2**53}, {}),
    "a negative seed": ({**WARM, "seed": -2}, {"seed": 2**63 - 2}),
    "a top_p of 0": ({**WARM, "top_p": 0.0}, {"temperature": 0.0, "top_p": 1.0}),
    "llama-server's name of a penalty": ({"extra_body": {"repeat_penalty": 1.3}}, {"repetition_penalty": 1.3}),
    "top_p": ({**WARM, "top_p": 0.6}, {}),
    "top_k": ({**WARM, "extra_body": {"top_k": 4}}, {}),
    "top_k of -1": ({**WARM, "extra_body": {"top_k": -1}}, {"top_k": 0}),
    "min_p": ({**WARM, "extra_body": {"min_p": 0.2}}, {}),
    "repetition_penalty": ({"extra_body": {"repetition_penalty": 1.3}}, {}),
    "presence_penalty": ({"presence_penalty": 1.5}, {}),
    "frequency_penalty": ({"frequency_penalty": -1.5}, {}),
    "logit_bias": ({"logit_bias": {"5": 3.5, "7": -100}}, {"logit_bias": {5: 3.5, 7: -100.0}}),
    "ignore_eos": ({**WARM, "extra_body": {"ignore_eos": True}}, {}),
    "stop_token_ids": ({"extra_body": {"stop_token_ids": [199, 203]}}, {"stop_token_ids": (199, 203)}),
    "stop, a text": ({"stop": "\n"}, {"stop": ("\n",)}),
    "stop, several": ({"stop": ["return", ":", "never there"]}, {"stop": ("return", ":", "never there")}),
    "no drafter": ({**WARM, "extra_body": {"forerun": {"drafter": "none"}}}, {}),
    "all at once": (
        {**WARM, "top_p": 0.9, "presence_penalty": 0.5, "extra_body": {"top_k": 20, "min_p": 0.01, "ignore_eos": True}},
        {},
    ),
}


@pytest.fixture(scope="module")
def own() -> Iterator[Engine]:
    """The engine itself, to compare with."""
    with Engine(ENGINE) as engine:
        expected.cache_clear()
        yield engine


@cache
def expected(engine: Engine, name: str, api: Api) -> tuple[Generation, str]:
    """What the engine writes, and why it ends."""
    fields, renamed = FIELDS[name]
    plain = {**fields, **fields.get("extra_body", {}), **renamed}
    settings = {key: value for key, value in plain.items() if key not in ("extra_body", "forerun", "repeat_penalty")}
    params = SamplingParams(**{"max_new_tokens": NUM_TOKENS, **settings})
    stream = engine.stream(CHAT if api == "chat" else PROMPT, params)
    finishes = [step.finish for step in stream]
    assert finishes[-1] is not None
    return stream.result(), finishes[-1].value


@pytest.mark.parametrize(("way", "name"), in_turn(WAYS, list(FIELDS)), ids=str)
def test_a_field_means_what_it_means_to_the_engine(server: Served, own: Engine, way: Way, name: str) -> None:
    answer = way.ask(server, max_tokens=NUM_TOKENS, **FIELDS[name][0])
    result, finish = expected(own, name, way.api)
    assert answer.texts == [result.text]
    assert answer.finishes == [finish]
    assert (answer.num_prompt, answer.num_new) == (result.stats.num_prompt_tokens, result.stats.num_new_tokens)
    assert answer.logprobs == []
