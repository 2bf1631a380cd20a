"""Log-probabilities of a text: the target's own, whoever drafted it and wherever a stop cuts it."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from forerun import Automatic, ConfigError, DraftModel, Engine, EngineConfig, NoDrafter, Parallel, SamplingParams
from forerun.core.steps import TokenLogprob
from tests.marks import rest_slow
from tests.varied import Varied, draft_model, engine_with, layer_skip, prompt_lookup, varied

PROMPT = "the cat sat on the mat and the cat sat on the "
PARAMS = SamplingParams(temperature=0.8, top_k=40, repetition_penalty=1.1, seed=3, max_new_tokens=24, ignore_eos=True)
ASKED = replace(PARAMS, logprobs=3)
DRAFTERS = {
    "prompt_lookup": prompt_lookup(adaptive=False, lengths=(4, 3, 2, 1)),
    "draft_model": draft_model(adaptive=False),
    "layer_skip": layer_skip(adaptive=False, search="off", depth=4),
    "auto": varied(Automatic()),
    "parallel": varied(Parallel(draft=DraftModel(verify_width=8, draft_width=4))),  # verified as a draft model's
}


@pytest.fixture(scope="module")
def plain() -> Iterator[Engine]:
    with Engine(EngineConfig(drafter=NoDrafter(), max_length=128)) as engine:
        yield engine


def logprobs_of(engine: Engine, params: SamplingParams) -> list[TokenLogprob]:
    return [item for step in engine.stream(PROMPT, params) for item in step.logprobs]


def values_of(logprobs: list[TokenLogprob]) -> list[float]:
    return [value for item in logprobs for value in (item.logprob, *(value for _, value in item.top))]


@pytest.mark.usefixtures("random_turns")
@pytest.mark.parametrize("name", rest_slow(DRAFTERS, 4))
def test_every_drafter_gives_the_numbers_of_plain_decoding(plain: Engine, name: str) -> None:
    chosen: Varied = DRAFTERS[name]
    expected = logprobs_of(plain, ASKED)
    with engine_with(chosen, max_length=128) as engine:
        text = engine.generate(PROMPT, PARAMS).token_ids
        found = logprobs_of(engine, ASKED)
        stats = engine.generate(PROMPT, ASKED).stats
    assert stats.num_drafted > 0, "a drafter that never drafts shows nothing"
    assert [item.token_id for item in found] == list(text) == [item.token_id for item in expected]
    assert values_of(found) == pytest.approx(values_of(expected), abs=1e-4)
    assert [len(item.top) for item in found] == [3] * len(text)


@pytest.mark.usefixtures("random_turns")
@pytest.mark.parametrize("name", rest_slow(DRAFTERS, 4))
def test_every_drafter_gives_the_bits_of_the_prompt_also_where_it_is_cached(name: str) -> None:
    """The prompt is longer than one pass, so that a pass after the first is compared too."""
    prompt = PROMPT * 20
    asked = replace(PARAMS, max_new_tokens=4, prompt_logprobs=2)
    with Engine(EngineConfig(drafter=NoDrafter(), max_length=512)) as plain:
        expected = plain.generate(prompt, asked)
        prompt_ids = plain.encode(prompt)
        first = plain.generate(prompt_ids[:2], replace(asked, prompt_logprobs=None, logprobs=2, max_new_tokens=1))
    with engine_with(DRAFTERS[name], max_length=512) as engine:
        text = engine.generate(prompt, replace(asked, prompt_logprobs=None))
        found = engine.generate(prompt, asked)
        engine.generate("another text", PARAMS, owner="somebody else")
        again = engine.generate(prompt, asked)
    assert len(prompt_ids) > 256
    assert [item.token_id for item in expected.prompt_logprobs] == prompt_ids[1:]
    assert found.prompt_logprobs == again.prompt_logprobs == expected.prompt_logprobs
    assert found.token_ids == text.token_ids == expected.token_ids
    assert found.stats.num_reused_tokens == 0
    assert text.prompt_logprobs == first.prompt_logprobs == ()


def test_a_prompt_s_numbers_are_those_of_the_same_tokens_written(plain: Engine) -> None:
    greedy = SamplingParams(max_new_tokens=12, ignore_eos=True, logprobs=3)
    written = logprobs_of(plain, greedy)
    prompt_ids = [*plain.encode(PROMPT), *(item.token_id for item in written)]
    read = plain.generate(prompt_ids, replace(greedy, max_new_tokens=1, prompt_logprobs=3)).prompt_logprobs
    assert values_of(list(read[-12:])) == pytest.approx(values_of(written), abs=1e-4)
    assert [item.num_likelier for item in read[-12:]] == [0] * 12
    assert plain.generate(prompt_ids[:1], replace(greedy, prompt_logprobs=3)).prompt_logprobs == ()


def test_where_rows_are_exact_the_numbers_are_too() -> None:
    settings = {"dtype": "float32", "kernels": "torch", "exactness": "exact", "max_length": 128, "num_threads": 1}
    with engine_with(NoDrafter(), **settings) as engine:
        expected = logprobs_of(engine, ASKED)
    with engine_with(draft_model(adaptive=False), **settings) as engine:
        assert logprobs_of(engine, ASKED) == expected


def test_they_are_of_the_raw_logits_whatever_the_settings(plain: Engine) -> None:
    """Greedy, so that the text is of the raw logits too; a constant bias on every token changes no choice."""
    greedy = SamplingParams(max_new_tokens=12, ignore_eos=True, logprobs=1)
    shaped = replace(greedy, logit_bias=dict.fromkeys(range(plain.spec.vocab_size), 3.0))
    raw = logprobs_of(plain, greedy)
    assert logprobs_of(plain, shaped) == raw
    assert all(item.top == ((item.token_id, item.logprob),) for item in raw)
    assert all(value < 0.0 for value in values_of(raw))
    whole = replace(greedy, max_new_tokens=1, logprobs=20)
    likeliest = logprobs_of(plain, whole)[0].top
    assert list(likeliest) == sorted(likeliest, key=lambda item: -item[1])
    assert 0.0 < np.exp([value for _, value in likeliest]).sum() <= 1.0 + 1e-6


def test_a_stop_cuts_them_with_the_text(plain: Engine) -> None:
    whole = plain.generate(PROMPT, PARAMS)
    params = replace(ASKED, stop_token_ids=(whole.token_ids[9],))
    with engine_with(DRAFTERS["draft_model"], max_length=128) as engine:
        for step in engine.stream(PROMPT, params):
            assert tuple(item.token_id for item in step.logprobs) == step.token_ids


def test_who_does_not_ask_gets_none_and_too_many_are_refused(plain: Engine) -> None:
    assert logprobs_of(plain, PARAMS) == []
    assert all(item.top == () for item in logprobs_of(plain, replace(PARAMS, logprobs=0)))
    for wrong in (-1, 21):
        for name in ("logprobs", "prompt_logprobs"):
            with pytest.raises(ConfigError, match=rf"{name} {wrong} must lie in \[0, 20\]"):
                SamplingParams(**{name: wrong})
