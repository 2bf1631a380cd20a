"""A request may say who drafts and what the answer probably resembles; neither changes a token."""

from collections.abc import Iterator

import pytest

from forerun import (
    Automatic,
    ConfigError,
    DraftModel,
    Engine,
    EngineConfig,
    Generation,
    NoDrafter,
    Parallel,
    SamplingParams,
)
from tests.marks import rest_slow
from tests.random_turns import turns_at_random
from tests.varied import draft_model, engine_with, layer_skip, prompt_lookup, recycling, varied

PROMPT = "def add(a, b):"
PARAMS = SamplingParams(temperature=0.8, seed=3, max_new_tokens=48, ignore_eos=True)
DRAFTERS = {
    "prompt_lookup": prompt_lookup(adaptive=False),
    "recycling": recycling(adaptive=False),
    "draft_model": draft_model(adaptive=False),
    "layer_skip": layer_skip(adaptive=False, search="off", depth=4),
    "auto": varied(Automatic()),
    "parallel": varied(Parallel(draft=DraftModel(adaptive=False))),  # by default: properties/test_same_text_parallel
}
SETTINGS = {"max_length": 160}


@pytest.fixture(scope="module")
def plain() -> Generation:
    with Engine(EngineConfig(drafter=NoDrafter(), **SETTINGS)) as engine:  # type: ignore[arg-type]
        ours = engine.generate(PROMPT, PARAMS)
        named = engine.generate(PROMPT, PARAMS, drafter="none", prediction="x = 1")
    assert named.token_ids == ours.token_ids
    assert named.stats.num_predicted_rejected == 0
    return ours


@pytest.fixture(scope="module", params=rest_slow(DRAFTERS, 5))
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with turns_at_random(), engine_with(DRAFTERS[request.param], **SETTINGS) as engine:
        yield engine


def test_a_wrong_one_is_counted_and_costs_no_token(engine: Engine, plain: Generation) -> None:
    result = engine.generate(PROMPT, PARAMS, prediction="Once upon a time there was a prediction")
    assert result.token_ids == plain.token_ids
    assert result.stats.num_predicted_rejected > 0
    again = engine.generate(PROMPT, PARAMS)
    assert again.token_ids == plain.token_ids
    assert again.stats.num_predicted_accepted == again.stats.num_predicted_rejected == 0


def test_plain_decoding_can_be_asked_for_in_between(engine: Engine, plain: Generation) -> None:
    first = engine.generate(PROMPT, PARAMS)
    between = engine.generate(PROMPT, PARAMS, drafter="none", prediction=plain.token_ids)
    last = engine.generate(PROMPT, PARAMS)
    assert first.token_ids == between.token_ids == last.token_ids == plain.token_ids
    assert between.stats.num_drafted == between.stats.num_predicted_accepted == 0
    assert between.stats.num_rounds == len(plain.token_ids)
    assert between.stats.num_reused_tokens == last.stats.num_reused_tokens
    assert first.stats.num_drafted > 0 < last.stats.num_drafted


def test_a_drafter_or_a_prediction_that_cannot_be_is_refused() -> None:
    with engine_with(DRAFTERS["prompt_lookup"], **SETTINGS) as engine:
        with pytest.raises(
            ConfigError, match=r"drafter 'prompt_lookup' is not available .*: name none, or leave it out"
        ):
            engine.generate(PROMPT, drafter="prompt_lookup")
        with pytest.raises(ConfigError, match="the prediction holds token id -1"):
            engine.generate(PROMPT, prediction=[5, -1])
        with pytest.raises(ConfigError, match="prediction of type int cannot be read"):
            engine.generate(PROMPT, prediction=5)  # type: ignore[arg-type]


def test_every_node_says_who_guessed_it() -> None:
    """Recycled guesses stand beside looked-up ones, a draft's beside them too, and the root is nobody's."""
    for name, own in (("recycling", "recycled"), ("draft_model", "draft")):
        with engine_with(DRAFTERS[name], **SETTINGS) as engine:
            trees = [step.stats.tree for step in engine.stream("a b c d e f " * 3, PARAMS)]
        sources = [source for tree in trees if tree is not None for source in tree.sources]
        assert set(sources) == {"", "lookup", own}
        assert all(tree.sources[0] == "" not in tree.sources[1:] for tree in trees if tree is not None)
    with engine_with(DRAFTERS["prompt_lookup"], **SETTINGS) as engine:
        trees = [step.stats.tree for step in engine.stream("a b c d e f " * 3, PARAMS)]
    assert {source for tree in trees if tree is not None for source in tree.sources} == {"", "lookup"}
