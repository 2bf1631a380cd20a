"""What a program that uses an engine may rely on."""

from collections.abc import Iterator
from dataclasses import replace
from threading import Event, Thread
from time import sleep

import numpy as np
import pytest
import torch

from forerun import (
    ConfigError,
    ContextOverflowError,
    DraftModel,
    Engine,
    EngineBusyError,
    EngineConfig,
    FinishReason,
    NoDrafter,
    NumericalError,
    PromptLookup,
    SamplingParams,
)
from forerun.backends.cpu.binding import fault
from forerun.model.executor import ForwardInput, ForwardOutput
from tests.random_turns import turns_at_random
from tests.varied import NO_LOOKUP

PROMPT = "the cat sat on the mat and the cat "
SAMPLED = SamplingParams(temperature=1.0, seed=7, max_new_tokens=40, ignore_eos=True)


@pytest.fixture(scope="module")
def plain_engine(target: str) -> Iterator[Engine]:
    with Engine(EngineConfig(target=target, drafter=NoDrafter(), dtype="float64")) as engine:
        yield engine


@pytest.fixture(scope="module", params=["draft_model", "prompt_lookup"])
def engine(request: pytest.FixtureRequest, target: str, draft: str) -> Iterator[Engine]:
    drafter = {"draft_model": DraftModel(model=draft), "prompt_lookup": PromptLookup(adaptive=False)}[request.param]
    with turns_at_random(), Engine(EngineConfig(target=target, drafter=drafter, dtype="float64")) as engine:
        yield engine


def test_every_drafter_writes_the_plain_text(engine: Engine, plain_engine: Engine) -> None:
    num_drafted = num_accepted = 0
    for seed in range(6):
        # Some tokens are favoured in every other text, so that it repeats itself and can be looked up.
        bias = {65: 9.0, 66: 8.0} if seed % 2 else {}
        params = SamplingParams(
            temperature=seed % 3 / 2, seed=seed, max_new_tokens=60, ignore_eos=True, logit_bias=bias
        )
        ours = engine.generate(PROMPT, params)
        plain = plain_engine.generate(PROMPT, params)
        assert (ours.token_ids, ours.text, ours.finish_reason) == (plain.token_ids, plain.text, plain.finish_reason)
        num_drafted += ours.stats.num_drafted
        num_accepted += ours.stats.num_accepted
    assert min(num_drafted, num_accepted) > 0, "a drafter that never drafts shows nothing"


def test_the_seed_of_a_result_reproduces_it(engine: Engine) -> None:
    free = engine.generate(PROMPT, SamplingParams(temperature=1.0, max_new_tokens=30, ignore_eos=True))
    again = engine.generate(PROMPT, SamplingParams(temperature=1.0, max_new_tokens=30, ignore_eos=True, seed=free.seed))
    other = engine.generate(PROMPT, SamplingParams(temperature=1.0, max_new_tokens=30, ignore_eos=True))
    assert again.token_ids == free.token_ids
    assert other.token_ids != free.token_ids


def test_a_second_turn_does_not_prefill_the_first_again(engine: Engine, plain_engine: Engine) -> None:
    first = engine.generate(PROMPT, SAMPLED)
    prompt_ids = [*engine.encode(PROMPT), *first.token_ids, *engine.encode(" more")]
    second = engine.generate(prompt_ids, SAMPLED)
    plain = plain_engine.generate(prompt_ids, SAMPLED)
    num_first = first.stats.num_prompt_tokens + first.stats.num_new_tokens
    assert second.stats.num_reused_tokens >= num_first - 1
    assert second.token_ids == plain.token_ids


def test_a_shorter_or_other_prompt_after_a_long_one_is_not_confused_by_it(engine: Engine, plain_engine: Engine) -> None:
    for prompt in (PROMPT * 4, PROMPT, "another text", PROMPT * 2, "a"):
        assert engine.generate(prompt, SAMPLED).token_ids == plain_engine.generate(prompt, SAMPLED).token_ids


def test_cancelling_leaves_nothing_behind(engine: Engine, plain_engine: Engine) -> None:
    with engine.stream(PROMPT, SAMPLED) as stream:
        seen = next(stream).token_ids
    cut = stream.result()
    assert (cut.finish_reason, cut.token_ids) == (FinishReason.CANCELLED, seen)
    abandoned = engine.stream(PROMPT, SAMPLED)
    next(abandoned)
    whole = engine.generate(PROMPT, SAMPLED)
    assert whole.token_ids == plain_engine.generate(PROMPT, SAMPLED).token_ids
    assert abandoned.result().finish_reason == FinishReason.CANCELLED


def test_a_stop_string_ends_the_text_at_the_same_character_for_every_drafter(
    engine: Engine, plain_engine: Engine
) -> None:
    text = plain_engine.generate(PROMPT, SAMPLED).text
    stop = text[7:10]
    params = SamplingParams(temperature=1.0, seed=7, max_new_tokens=40, ignore_eos=True, stop=(stop,))
    ours = engine.generate(PROMPT, params)
    plain = plain_engine.generate(PROMPT, params)
    assert ours.text == text[: text.index(stop)]
    assert (ours.text, ours.token_ids, ours.finish_reason) == (plain.text, plain.token_ids, FinishReason.STOP)


def test_a_stop_token_ends_the_text_and_is_not_shown(engine: Engine, plain_engine: Engine) -> None:
    whole = plain_engine.generate(PROMPT, SAMPLED)
    stop = whole.token_ids[11]
    params = SamplingParams(temperature=1.0, seed=7, max_new_tokens=40, ignore_eos=True, stop_token_ids=(stop,))
    result = engine.generate(PROMPT, params)
    assert result.token_ids == whole.token_ids[: whole.token_ids.index(stop) + 1]
    assert result.finish_reason == FinishReason.STOP
    assert result.text == engine.tokenizer.decode(result.token_ids[:-1])


def test_the_context_can_be_filled_to_its_last_place(engine: Engine, plain_engine: Engine) -> None:
    prompt_ids = engine.encode(PROMPT * 30)[: engine.max_length - 37]
    params = SamplingParams(max_new_tokens=engine.max_length - len(prompt_ids), ignore_eos=True)
    result = engine.generate(prompt_ids, params)
    assert len(result.token_ids) + len(prompt_ids) == engine.max_length
    assert result.token_ids == plain_engine.generate(prompt_ids, params).token_ids
    assert len(engine.generate(prompt_ids, SamplingParams(ignore_eos=True)).token_ids) == 37


@pytest.mark.parametrize(("num_prompt", "max_new"), [(500, 13), (512, 1), (600, 1), (512, None)])
def test_what_does_not_fit_is_refused_with_numbers(plain_engine: Engine, num_prompt: int, max_new: int | None) -> None:
    with pytest.raises(ContextOverflowError, match=rf"prompt of {num_prompt} tokens.*context of 512"):
        plain_engine.generate([5] * num_prompt, SamplingParams(max_new_tokens=max_new))


def test_a_target_that_produces_nan_ends_the_request_with_an_error(target: str) -> None:
    with Engine(EngineConfig(target=target, drafter=NoDrafter(), dtype="float64")) as engine:
        sound = engine.generate(PROMPT, SAMPLED)
        engine._target.cache.keys_LSKD[:, 3] = torch.nan  # the fault itself: one damaged row of the cache
        with pytest.raises(NumericalError, match="float32"):
            engine.generate(PROMPT, SAMPLED)
        assert engine.generate(PROMPT, SAMPLED).token_ids == sound.token_ids


def test_exact_mode_gives_the_same_text_in_bfloat16(target: str, draft: str) -> None:
    params = [SamplingParams(temperature=t, seed=3, max_new_tokens=24, ignore_eos=True) for t in (0.0, 1.0)]
    texts = []
    for drafter in (NoDrafter(), DraftModel(model=draft, verify_width=12), PromptLookup()):
        config = EngineConfig(target=target, drafter=drafter, dtype="bfloat16", exactness="exact")
        with Engine(config) as engine:
            results = [engine.generate(PROMPT, item) for item in params]
            assert all(result.stats.num_near_ties == 0 for result in results)
            texts.append([result.token_ids for result in results])
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("side", ["target", "draft"])
def test_a_paced_engine_writes_the_same_text_and_takes_its_time(
    side: str, target: str, draft: str, plain_engine: Engine
) -> None:
    params = SamplingParams(temperature=1.0, seed=7, max_new_tokens=6, ignore_eos=True)
    drafter = DraftModel(model=draft, depth=1, adaptive=False)
    config = EngineConfig(target=target, drafter=drafter, dtype="float64", device=f"paced:{side}=50ms")
    with Engine(config, policies=NO_LOOKUP) as engine:
        paced = engine.generate(PROMPT, params)
    stats = paced.stats
    plain = plain_engine.generate(PROMPT, params)
    assert (paced.token_ids, paced.text) == (plain.token_ids, plain.text)
    assert stats.num_drafted > 0
    # Each round is one pass of the target; a drafted token needs one of the draft.
    elapsed_s, num_passes = {"target": (stats.verify_s, stats.num_rounds), "draft": (stats.draft_s, 1)}[side]
    assert elapsed_s >= 0.05 * num_passes


def test_another_thread_is_turned_away_and_changes_nothing(engine: Engine, plain_engine: Engine) -> None:
    failures: list[BaseException] = []

    def intrude() -> None:
        try:
            engine.generate("something else entirely", SAMPLED)
        except EngineBusyError as error:
            failures.append(error)

    stream = engine.stream(PROMPT, SAMPLED)
    next(stream)
    with engine._exclusive:
        thread = Thread(target=intrude)
        thread.start()
        thread.join()
    assert len(failures) == 1
    assert stream.result().token_ids == plain_engine.generate(PROMPT, SAMPLED).token_ids


def test_an_engine_that_is_closed_while_another_thread_is_in_a_round_ends_its_text_behind_it(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(EngineConfig(target=target, drafter=NoDrafter()))
    is_in_round = Event()
    results = []
    forward = engine._target.forward

    def forward_slowly(inputs: ForwardInput) -> ForwardOutput:
        is_in_round.set()
        sleep(0.05)
        return forward(inputs)

    monkeypatch.setattr(engine._target, "forward", forward_slowly)
    thread = Thread(target=lambda: results.append(engine.generate(PROMPT, SAMPLED)))
    thread.start()
    is_in_round.wait(60)
    engine.close()
    thread.join()
    assert [result.finish_reason for result in results] == [FinishReason.CANCELLED]


@pytest.mark.parametrize("prompt", [[1.5, 2], ["a", "b"], 7, None, [[1, 2]]])
def test_a_prompt_of_another_kind_is_refused(plain_engine: Engine, prompt: object) -> None:
    with pytest.raises(ConfigError, match="sequence of token ids"):
        plain_engine.generate(prompt)  # type: ignore[arg-type]


def test_ids_may_come_as_an_array(plain_engine: Engine) -> None:
    ids = plain_engine.encode(PROMPT)
    expected = plain_engine.generate(ids, SAMPLED).token_ids
    assert plain_engine.generate(np.array(ids), SAMPLED).token_ids == expected
    assert plain_engine.generate(torch.tensor(ids), SAMPLED).token_ids == expected


def test_after_forgetting_no_cache_holds_anything(engine: Engine, plain_engine: Engine) -> None:
    """A draft that still knew the prompt would have an advantage over a program that was asked to forget it."""
    (drafter,) = engine.drafting.held.values()
    draft = getattr(drafter, "_runner", None)
    first = engine.generate(PROMPT, SAMPLED)
    assert engine.generate(PROMPT, SAMPLED).stats.num_reused_tokens == first.stats.num_prompt_tokens - 1
    assert draft is None or len(draft.cached_ids) > 0
    engine.forget()
    assert engine._target.cached_ids == []
    assert draft is None or draft.cached_ids == []
    again = engine.generate(PROMPT, SAMPLED)
    assert again.stats.num_reused_tokens == 0
    assert again.token_ids == plain_engine.generate(PROMPT, SAMPLED).token_ids


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_margin_is_the_lead_of_the_token_that_is_chosen(plain_engine: Engine, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=11, max_new_tokens=6, ignore_eos=True)
    prompt_ids = plain_engine.encode(PROMPT)
    token_ids = plain_engine.generate(prompt_ids, params).token_ids
    for place, chosen in enumerate(token_ids):
        before = [*prompt_ids, *token_ids[:place]]
        margin = plain_engine.margin_after(before, params)
        assert margin > 0.0

        def choice(bias: float, before: list[int] = before, chosen: int = chosen) -> int:
            other = replace(params, max_new_tokens=1, logit_bias={chosen: -bias})
            return plain_engine.generate(before, other).token_ids[0]

        scale = temperature or 1.0  # a bias is added before the temperature divides
        assert choice(0.999 * margin * scale) == chosen
        assert choice(1.001 * margin * scale) != chosen, "less would have done"


def test_what_counts_as_a_near_tie_depends_on_dtype_mode_and_temperature(target: str, plain_engine: Engine) -> None:
    greedy = SamplingParams()
    cool = SamplingParams(temperature=0.5)
    assert (plain_engine.near_tie(greedy), plain_engine.near_tie(cool)) == (1e-9, 2e-9)
    for dtype, exactness, bound in (("float32", "fast", 1e-4), ("bfloat16", "fast", 0.25), ("bfloat16", "exact", 0.0)):
        config = EngineConfig(target=target, drafter=NoDrafter(), dtype=dtype, exactness=exactness, kernels="torch")
        with Engine(config) as engine:
            assert (engine.near_tie(greedy), engine.near_tie(cool)) == (bound, 2 * bound)


@pytest.mark.skipif(fault() is not None, reason=str(fault()))
def test_native_kernels_leave_nothing_to_rounding(target: str) -> None:
    with Engine(EngineConfig(target=target, drafter=NoDrafter(), dtype="bfloat16")) as engine:
        assert engine.near_tie(SamplingParams()) == 0.0
