"""Drafts from another process come late on a busy machine."""

from collections.abc import Sequence
from time import monotonic

from forerun import Engine, Generation, SamplingParams

LIMIT_S = 150.0


def drafted_answer(engine: Engine, prompt: str | Sequence[int], params: SamplingParams) -> Generation:
    """The first answer in which a draft is accepted and the drafter is there all the time; all before it are equal."""
    end = monotonic() + LIMIT_S
    first = None
    while True:
        answer = engine.generate(prompt, params)
        first = first or answer
        assert answer.token_ids == first.token_ids
        if answer.stats.num_accepted > 0 and answer.stats.num_rounds_down == 0:
            return answer
        assert monotonic() < end, f"no draft was accepted within {LIMIT_S:g} s"
