"""Numbers of SamplingParams from the edges of their ranges and far beyond: the plain text, or one clear refusal.

Every number alone, at 40 values, with every drafter of the built-in pair. A refusal names the setting, what was given
and what is allowed. `slow` has all of them, by default each drafter has its share.
"""

import logging
import math
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from forerun import (
    Automatic,
    DraftModel,
    Engine,
    EngineConfig,
    ForerunError,
    LayerSkip,
    NoDrafter,
    Parallel,
    PromptLookup,
    SamplingParams,
    TokenRecycling,
)
from forerun.core.drafter_config import DrafterConfig
from tests.marks import rest_slow

LOGGER = logging.getLogger(__name__)
PROMPT = "def area(radius):\n    return radius * radius\n\ndef area"
NUM_TOKENS = 4
DRAFTERS: dict[str, DrafterConfig] = {
    "draft_model": DraftModel(adaptive=False),
    "recycling": TokenRecycling(adaptive=False),
    "prompt_lookup": PromptLookup(),
    "auto": Automatic(),
    "layer_skip": LayerSkip(adaptive=False, search="off"),
    "parallel": Parallel(draft=DraftModel(verify_width=8, draft_width=4)),
}
TINY = sys.float_info.min
LEAST = 5e-324
MOST = sys.float_info.max
EDGES = (0.5, 1, 2, 20, 1e-4, 1e4, 1e38, 3.4028235e38, 1e39, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**70, 1e-9, TINY)
VALUES = (0, -0.0, *EDGES, *(-edge for edge in EDGES), LEAST, -LEAST, MOST, math.nan, math.inf, -math.inf)
NAMES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
         "logit_bias", "max_new_tokens", "seed", "logprobs")  # fmt: skip
RANGES = ("must lie in", "must be", "or lie in", "is needed", "too large", "at most", "leave")


def params_of(name: str, value: float) -> SamplingParams:
    """This setting, and a temperature at which the others count."""
    given: dict[str, Any] = {"temperature": 0.7, "seed": 1, "max_new_tokens": NUM_TOKENS, "ignore_eos": True}
    return SamplingParams(**given | {name: {65: value} if name == "logit_bias" else value})


def outcome(engine: Engine, params: SamplingParams) -> tuple[Any, ...]:
    """The first tokens with their log-probabilities, or the error."""
    found: list[Any] = []
    try:
        for step in engine.stream(PROMPT, params):
            found += zip(step.token_ids, step.logprobs or step.token_ids, strict=True)
            if len(found) >= NUM_TOKENS:
                break
    except ForerunError as error:
        return (type(error), str(error))
    return tuple(found[:NUM_TOKENS])


@contextmanager
def opened(drafter: DrafterConfig) -> Iterator[Engine]:
    with Engine(EngineConfig(drafter=drafter, num_threads=1, max_length=128)) as engine:
        yield engine


@pytest.fixture(scope="module")
def plain() -> Iterator[Engine]:
    with opened(NoDrafter()) as engine:
        yield engine


def contest(plain: Engine, drafter: DrafterConfig, values: tuple[float, ...]) -> Counter[str]:
    """What became of these values of every setting."""
    counts: Counter[str] = Counter()
    with opened(drafter) as engine:
        for name in NAMES:
            for value in values:
                try:
                    params = params_of(name, value)
                except ForerunError as error:
                    require_names(str(error), name, value)
                    counts["refused"] += 1
                    continue
                expected = outcome(plain, params)
                assert outcome(engine, params) == expected, f"{name}={value!r}"
                assert expected, f"{name}={value!r}: no token"
                if isinstance(expected[0], type):
                    require_names(expected[1], name, value)
                counts["refused" if isinstance(expected[0], type) else "written"] += 1
    return counts


def require_names(message: str, name: str, value: float) -> None:
    """One line that names the setting, what was given and what is allowed."""
    shown = {str(value), repr(value), str(float(value))}
    assert "\n" not in message
    assert name in message, message
    assert any(text in message for text in shown), f"{value!r}: {message}"
    assert any(text in message for text in RANGES), message


@pytest.mark.parametrize("name", rest_slow(DRAFTERS, 1))
def test_some_extreme_settings_write_the_plain_text_or_are_refused_by_name(name: str, plain: Engine) -> None:
    counts = contest(plain, DRAFTERS[name], VALUES[::9])
    assert counts["written"] > 5
    assert counts["refused"] > 10


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAFTERS)
def test_extreme_settings_write_the_plain_text_or_are_refused_by_name(name: str, plain: Engine) -> None:
    counts = contest(plain, DRAFTERS[name], VALUES)
    LOGGER.info("%s", dict(counts))
    assert counts["written"] > 100
    assert counts["refused"] > 100
