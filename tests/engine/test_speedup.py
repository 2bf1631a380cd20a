"""Plain rounds that are timed change no text, leave the caches as they were, and stand for plain decoding."""

from collections.abc import Iterator
from typing import Any

import pytest

from forerun import (
    ContextOverflowError,
    DrafterState,
    DraftModel,
    Engine,
    EngineConfig,
    LayerSkip,
    NoDrafter,
    Parallel,
    PromptLookup,
    SamplingParams,
)
from forerun.speculation.referee import plain_times
from tests.marks import rest_slow

PROMPT = "the cat sat on the mat and the cat "
MIXED = [
    SamplingParams(max_new_tokens=60, ignore_eos=True),
    SamplingParams(max_new_tokens=60, ignore_eos=True, temperature=0.8, seed=3, top_p=0.9),
    SamplingParams(
        max_new_tokens=60, ignore_eos=True, temperature=1.0, seed=4, repetition_penalty=1.2, presence_penalty=0.5,
        frequency_penalty=0.3, logit_bias={40: 2.0},
    ),
]  # fmt: skip


def drafters(draft: str) -> dict[str, Any]:
    return {
        "draft_model": DraftModel(model=draft),
        "parallel": Parallel(draft=DraftModel(model=draft), num_threads=1),
        "prompt_lookup": PromptLookup(adaptive=False),
        "layer_skip": LayerSkip(weights="int4", adaptive=False),
    }


@pytest.fixture(params=rest_slow(["draft_model", "parallel", "layer_skip", "prompt_lookup"], 1))
def engine(request: pytest.FixtureRequest, target: str, draft: str) -> Iterator[Engine]:
    config = EngineConfig(target=target, drafter=drafters(draft)[request.param], dtype="float32", measures_speedup=True)
    with Engine(config) as engine:
        yield engine


@pytest.fixture(scope="module")
def plain_engine(target: str) -> Iterator[Engine]:
    config = EngineConfig(target=target, drafter=NoDrafter(), dtype="float32", measures_speedup=True)
    with Engine(config) as engine:
        yield engine


def test_stretches_after_nearly_every_round_change_no_text(
    engine: Engine, plain_engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plain_times, "SHARE", 1000.0)
    states = []
    for params in MIXED:
        plain = plain_engine.generate(PROMPT, params)
        stream = engine.stream(PROMPT, params)
        states += [step.stats.drafter for step in stream]
        ours = stream.result()
        assert (ours.token_ids, ours.text, ours.finish_reason) == (plain.token_ids, plain.text, plain.finish_reason)
    assert len(states) / 5 < states.count(DrafterState.PAUSED) < len(states), "drafted and plain rounds must alternate"
    assert "dropped" not in caplog.text, "the drafter was not told of the text that it paused in"


def test_a_text_is_not_lost_where_no_memory_is_left_for_plain_rounds_behind_it(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*inputs: object) -> None:
        raise ContextOverflowError("no memory")

    config = EngineConfig(target=target, drafter=PromptLookup(adaptive=False), dtype="float32", measures_speedup=True)
    with Engine(config) as engine:
        stream = engine.stream(PROMPT, MIXED[0])
        num_tokens = sum(len(step.token_ids) for step in stream)
        monkeypatch.setattr(engine._target, "forward", refuse)
        assert len(stream.result().token_ids) == num_tokens == 60


def test_a_result_that_is_asked_for_late_does_not_touch_the_text_that_runs_now(
    target: str, plain_engine: Engine
) -> None:
    with Engine(EngineConfig(target=target, drafter=PromptLookup(), dtype="float32", measures_speedup=True)) as engine:
        old = engine.stream(PROMPT, MIXED[0])
        for _ in old:
            pass
        new = engine.stream("another text, another text, ", MIXED[1])
        first = next(new)
        assert old.result().stats.speedup is None
        rest = [token for step in new for token in step.token_ids]
        expected = plain_engine.generate("another text, another text, ", MIXED[1])
        assert (*first.token_ids, *rest) == expected.token_ids


def test_nothing_is_compared_unless_asked_for_or_where_nothing_is_drafted(target: str, plain_engine: Engine) -> None:
    with Engine(EngineConfig(target=target, drafter=PromptLookup(), dtype="float32")) as engine:
        assert engine.generate(PROMPT, MIXED[0]).stats.speedup is None
    assert plain_engine.generate(PROMPT, MIXED[0]).stats.speedup is None
