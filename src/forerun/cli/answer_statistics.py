"""Statistics of an answer as text: a short line, a line with everything, and advice if drafting was slow."""

from collections.abc import Mapping
from typing import Final

from forerun.core.drafter_config import Automatic, DrafterConfig, NoDrafter
from forerun.core.steps import PLAIN, Generation, GenerationStats, SkipReport, Speedup

SURELY_SLOWER: Final = 0.97  # auto loses 2 percent of plain decoding's speed at most


def short_numbers(result: Generation, drafter: DrafterConfig) -> str:
    """The speedup by drafting, if it is known, and the speed."""
    stats = result.stats
    parts = [
        _gain(stats, drafter),
        f"{stats.tokens_per_s:.1f} tokens/s",
        counted(stats.num_new_tokens, "token"),
        f"first token after {stats.first_token_s:.2f} s",
    ]
    return " · ".join(filter(None, parts))


def all_numbers(result: Generation, drafter: DrafterConfig, *, is_greedy: bool) -> str:
    """The short line, the confidence interval of the speedup, and how well drafting went."""
    stats = result.stats
    parts = [short_numbers(result, drafter)]
    if stats.speedup is not None:
        parts.append(_certainty(stats.speedup))
    if stats.num_drafted:
        parts.append(f"{stats.accepted_per_round:.2f} drafted tokens accepted per pass of the model")
    if stats.rounds_by:
        parts.append(_who_drafted(stats.rounds_by))
    if stats.hit_rate:  # from drafters whose tree is larger than what they propose
        parts.append(f"the drafter's tree had the next token after {stats.hit_rate:.0%} of passes")
    if stats.skips is not None:
        parts.append(_skipping(stats.skips))
    if stats.num_outside:
        parts.append(f"{stats.num_outside} of {counted(stats.num_new_tokens, 'token')} that the draft does not have")
    speed = f", read at {stats.prompt_tokens_per_s:.0f} tokens/s" if stats.prompt_tokens_per_s else ""
    parts.append(f"prompt of {counted(stats.num_prompt_tokens, 'token')}{speed}")
    if not is_greedy:
        parts.append(f"seed {result.seed}")
    if stats.num_near_ties:
        parts.append(f"{counted(stats.num_near_ties, 'token')} that rounding may have decided")
    absences = (("away", stats.num_rounds_down), ("late", stats.num_rounds_late))
    parts += [f"drafter {how} in {number} of {stats.num_rounds} passes" for how, number in absences if number]
    return " · ".join(parts)


def advice(result: Generation, drafter: DrafterConfig) -> str | None:
    """Advice if a drafter that was chosen by hand was measured to be slower than plain decoding."""
    speedup = result.stats.speedup
    if speedup is None or speedup.high >= SURELY_SLOWER or isinstance(drafter, Automatic | NoDrafter):
        return None
    return "this drafter costs more than it saves here; --drafter auto is faster"


def _gain(stats: GenerationStats, drafter: DrafterConfig) -> str:
    speedup = stats.speedup
    if isinstance(drafter, NoDrafter):
        return ""
    if stats.is_undrafted and not stats.gained:
        return "decoded plainly: drafting does not pay here"
    if speedup is None:
        return ""
    if speedup.low <= 1.0 <= speedup.high:
        return "as fast as plain decoding"
    return f"{speedup.value:.2f}x as fast as plain decoding"


def _who_drafted(rounds_by: Mapping[str, int]) -> str:
    num_rounds = sum(rounds_by.values())
    told = [f"{name} in {number}" for name, number in rounds_by.items() if name != PLAIN]
    return f"drafted by {', '.join(told)} of {num_rounds} passes" if told else "nothing drafted"


def _skipping(skips: SkipReport) -> str:
    """What drafts skip, how well this guesses, and how the search for it goes."""
    kinds = (("attention", skips.attention), ("MLP", skips.mlp))
    sets = [f"{kind} of layers {','.join(map(str, layers))}" for kind, layers in kinds if layers]
    parts = [f"drafts skip {' and '.join(sets) or 'nothing'}"]
    if skips.hit_rate is not None:
        parts.append(f"their first token was right {skips.hit_rate:.0%} of the time")
    if skips.matchness is not None:
        parts.append(f"matchness {skips.matchness:.0%}")
    if skips.num_scored:
        state = "goes on" if skips.is_searching else "is done"
        parts.append(f"the search {state} after {counted(skips.num_scored, 'set')} and {skips.search_s:.1f} s")
    return ", ".join(parts)


def _certainty(speedup: Speedup) -> str:
    plain = f"plain decoding takes {1e3 * speedup.plain_token_s:.2f} ms a token"
    return f"{speedup.low:.2f}x to {speedup.high:.2f}x; {plain}"


def counted(number: int, what: str) -> str:
    """A number of things, such as 2 tokens."""
    return f"{number} {what}{'s' if number != 1 else ''}"
