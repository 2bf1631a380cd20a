"""Times and traces that tests can work out by hand."""

from forerun.core.pace import Pace
from forerun_lab.planner.simulate import Costs
from forerun_lab.planner.trace import AnswerTrace


def flat(milliseconds: float) -> Pace:
    return Pace(steps=((64, 1e-3 * milliseconds),))


def costs(target_ms: float, draft_ms: float, *, overhead_ms: float = 0.0) -> Costs:
    return Costs(
        target=flat(target_ms),
        draft=flat(draft_ms),
        serial_overhead_s=1e-3 * overhead_ms,
        parallel_overhead_s=1e-3 * overhead_ms,
    )


def known_answer(num_tokens: int, *, is_right: bool = True) -> AnswerTrace:
    """An answer of which the draft is sure at every token, rightly or wrongly."""
    token_ids = tuple(range(100, 100 + num_tokens))
    guesses = token_ids if is_right else tuple(token_id + 1000 for token_id in token_ids)
    return AnswerTrace(
        prompt_ids=(1, 2),
        token_ids=token_ids,
        children=tuple((token_id, token_id + 5000) for token_id in guesses),
        log_probs=((-0.01, -5.0),) * num_tokens,
    )
