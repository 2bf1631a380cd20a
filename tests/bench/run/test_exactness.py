"""Where two texts part, and whether rounding can be the cause."""

from collections.abc import Iterator

import pytest

from forerun import Engine, EngineConfig, NoDrafter, SamplingParams
from forerun_lab.bench.records.answers import Match
from forerun_lab.bench.run.interleaved import compare

PROMPT = "def is_even(number):\n    return"
PARAMS = [SamplingParams(max_new_tokens=8), SamplingParams(max_new_tokens=8, temperature=1.0, seed=5)]


@pytest.fixture(scope="module")
def plain() -> Iterator[Engine]:
    with Engine(EngineConfig(drafter=NoDrafter(), max_length=128, num_threads=1)) as engine:
        yield engine


class Stranger:
    """An engine that must not be asked."""


@pytest.mark.parametrize(
    ("ids", "expected", "place"),
    [((1, 2), (1, 2), None), ((), (), None), ((1,), (1, 2), 1), ((1, 2, 3), (1, 2), 2), ((), (1,), 0)],
)
def test_a_text_that_ends_elsewhere_differs_and_rounding_has_no_say(
    ids: tuple[int, ...], expected: tuple[int, ...], place: int | None
) -> None:
    assert compare(ids, expected, [1], PARAMS[0], Stranger()) == Match(first_difference=place)  # type: ignore[arg-type]


@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "sampled"])
@pytest.mark.parametrize("place", [0, 3])
def test_the_margin_is_that_of_the_first_difference(plain: Engine, params: SamplingParams, place: int) -> None:
    prompt_ids = plain.encode(PROMPT)
    expected = plain.generate(prompt_ids, params).token_ids
    wrong = [*expected[:place], expected[place] + 1, *expected[place + 1 :]]
    match = compare(wrong, expected, prompt_ids, params, plain)
    margin = plain.margin_after([*prompt_ids, *expected[:place]], params)
    assert (match.first_difference, match.is_near_tie) == (place, False)
    assert match.margin == pytest.approx(margin, abs=1e-4)  # what is in the cache was computed in other passes
    assert margin > plain.near_tie(params)
