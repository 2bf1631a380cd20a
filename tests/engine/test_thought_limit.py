"""A limit on thoughts: exact to the token, and the same text with every drafter."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from forerun import (
    Automatic,
    ConfigError,
    DraftModel,
    Engine,
    EngineConfig,
    Grammar,
    LayerSkip,
    NoDrafter,
    Parallel,
    PromptLookup,
    SamplingParams,
    TokenRecycling,
)
from forerun.text.detokenizer import num_unfinished_bytes
from forerun.text.output.thoughts import ThoughtMarks

DRAFT = DraftModel(model="builtin-draft")
LOCAL = (DRAFT, PromptLookup(), TokenRecycling(), LayerSkip(), Automatic())
ALL = (*LOCAL, Parallel(draft=DRAFT))
PROMPTS = ("def area(w, h):\n", "class Stack:\n    pass\n", "x", "é日本 = [")
MARKS = (  # the built-in model writes all of them now and then
    ThoughtMarks(begin="(", end=")", is_open=True),
    ThoughtMarks(begin="def", end="\n\n", is_open=False),
    ThoughtMarks(begin='"""', end=' return"""', is_open=True),  # several tokens
)
LIMITS = (0, 1, 7, 64)
MOST_NEW = 90
Case = tuple[str, ThoughtMarks, SamplingParams]


def cases(seeds: range) -> list[Case]:
    return [
        (
            PROMPTS[number % len(PROMPTS)],
            marks,
            SamplingParams(max_new_tokens=MOST_NEW, max_thought_tokens=most, temperature=temperature, seed=seed),
        )
        for number, (seed, marks, most, temperature) in enumerate(itertools.product(seeds, MARKS, LIMITS, (0.0, 1.0)))
    ]


def opened(drafter: Any) -> Engine:
    return Engine(EngineConfig(drafter=drafter, max_length=256))


@pytest.fixture(scope="module")
def plain() -> Iterator[Engine]:
    with opened(NoDrafter()) as engine:
        yield engine


def written(engine: Engine, case: Case) -> tuple[int, ...]:
    prompt, marks, params = case
    return engine.stream(prompt, params, thoughts=marks).result().token_ids


def check_length(engine: Engine, case: Case, token_ids: tuple[int, ...]) -> bool:
    """Check that the thought is as long as it may be; False if it ended by itself or never began."""
    prompt, marks, params = case
    unlimited = written(engine, (prompt, marks, replace(params, max_thought_tokens=None)))
    assert params.max_thought_tokens is not None
    closing = engine.tokenizer.encode_inside(marks.end)
    if token_ids == unlimited:
        return False
    parted = next(place for place, (one, other) in enumerate(zip(token_ids, unlimited, strict=False)) if one != other)
    start = parted - len(closing)  # its first tokens may be those that the model chose too
    place = next(at for at in range(max(0, start), parted + 1) if list(token_ids[at:][: len(closing)]) == closing)
    if marks.is_open:
        assert params.max_thought_tokens <= place <= params.max_thought_tokens + 3, engine.tokenizer.decode(token_ids)
        text = b"".join(map(engine.tokenizer.bytes_of, token_ids[:place]))
        assert place == params.max_thought_tokens + 3 or not num_unfinished_bytes(text), "a character was cut"
    return True


def check_drafters(plain: Engine, drafters: tuple[Any, ...], some: list[Case]) -> int:
    expected = [written(plain, case) for case in some]
    num_forced = sum(check_length(plain, case, ids) for case, ids in zip(some, expected, strict=True))
    for drafter in drafters:
        with opened(drafter) as engine:
            for case, token_ids in zip(some, expected, strict=True):
                assert written(engine, case) == token_ids, f"{case} with {drafter}"
    return num_forced


def test_thoughts_end_at_their_limit_with_every_drafter(plain: Engine) -> None:
    assert check_drafters(plain, LOCAL, cases(range(1))[::3]) > 3


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(5))
def test_many_cases(plain: Engine, chunk: int) -> None:
    """2,160 texts: 360 requests with each of six drafters."""
    assert check_drafters(plain, ALL, cases(range(100 + 3 * chunk, 103 + 3 * chunk))) > 15


def test_a_grammar_begins_after_the_limit(plain: Engine) -> None:
    marks = ThoughtMarks(begin="(", end=")", is_open=True)
    grammar = Grammar(kind="regex", text="[0-9]{3};", after=")")
    for seed, drafter in enumerate(LOCAL[:3]):
        params = SamplingParams(max_new_tokens=40, temperature=1.0, seed=seed, max_thought_tokens=5, grammar=grammar)
        case = (PROMPTS[0], marks, params)
        token_ids = written(plain, case)
        thought, _, answer = plain.tokenizer.decode(token_ids).partition(")")
        assert len(plain.tokenizer.encode_inside(thought)) <= 8
        assert len(answer.strip()) == 4, answer
        with opened(drafter) as engine:
            assert written(engine, case) == token_ids


def test_closing_marks_are_drafted(plain: Engine) -> None:
    marks = ThoughtMarks(begin='"""', end=' and so it is the end of it"""', is_open=True)
    params = SamplingParams(max_new_tokens=12, max_thought_tokens=1)
    with opened(PromptLookup(adaptive=False)) as engine:  # whatever passes take
        answer = engine.stream("x = 1\n", params, thoughts=marks).result()
    assert answer.token_ids == written(plain, ("x = 1\n", marks, params))
    assert answer.stats.num_rounds < answer.stats.num_new_tokens - 4


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_thought_tokens -1"):
        SamplingParams(max_thought_tokens=-1)
