"""Estimated time of a pass with some sublayers skipped, from measurements."""

from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from forerun.core.pace import Pace
from forerun.core.sublayers import ATTENTION, MLP, NOTHING, SkipSet, all_sublayers
from forerun.model.measure import empty_cache, least_times, stand_in, time_pass
from forerun.model.shared_cache import DraftRunner

KINDS: Final = (ATTENTION, MLP)
LONG_CONTEXT: Final = 1024  # tokens, enough to measure attention's time per token
SHORT_CONTEXT: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipCosts:
    """Seconds of draft passes by skipped sublayers. All sublayers of a kind take the same time.

    Args:
        whole: seconds of a draft pass with every sublayer, by its rows.
        attention_s: seconds of one attention sublayer in a one-row pass, at `context`.
        mlp_s: seconds of one MLP in such a pass.
        context: tokens before the rows during the measurement.
        attention_slope_s: added seconds of one attention sublayer per token before the rows.
        num_layers: layers of the model.
    """

    whole: Pace
    attention_s: float
    mlp_s: float
    context: int
    attention_slope_s: float
    num_layers: int

    def attention_at(self, context: int) -> float:
        """Seconds of one attention sublayer at this context length."""
        return max(0.0, self.attention_s + self.attention_slope_s * (context - self.context))

    def whole_at(self, context: int) -> float:
        """Seconds of a pass of one row with every sublayer."""
        return self.whole.step_s(1) + self.num_layers * (self.attention_at(context) - self.attention_s)

    def draft_s(self, num_attention: int, num_mlp: int, context: int) -> float:
        """Seconds of a one-row pass that skips this many sublayers of each kind, at least 1 % of a pass."""
        whole_s = self.whole_at(context)
        return max(whole_s / 100, whole_s - num_attention * self.attention_at(context) - num_mlp * self.mlp_s)

    def draft(self, skipped: SkipSet, context: int) -> Pace:
        """The pace of draft passes that skip these, assumed to scale with the number of rows as a whole pass does."""
        share = self.draft_s(*numbers_of(skipped), context) / self.whole.step_s(1)
        return Pace(steps=tuple((rows, seconds * share) for rows, seconds in self.whole.steps))


def numbers_of(skipped: SkipSet) -> tuple[int, int]:
    """Numbers of attention and MLP sublayers skipped."""
    num_attention = sum(kind == ATTENTION for _, kind in skipped)
    return num_attention, len(skipped) - num_attention


@torch.inference_mode()
def measure_skip_costs(runner: DraftRunner, whole: Pace, *, budget_s: float = 0.2) -> SkipCosts:
    """Measure the time of each kind of sublayer, by passes without that kind at a short and at a long context.

    Empties the cache.

    Args:
        whole: seconds of a pass with all sublayers, by its rows.
        budget_s: seconds after which no further repeat starts.
    """
    cache, num_layers = empty_cache(runner), runner.spec.num_layers
    short, long = min(SHORT_CONTEXT, (cache.capacity - 1) // 2), min(LONG_CONTEXT, cache.capacity - 1)
    attentions, mlps = (frozenset(part for part in all_sublayers(num_layers) if part[1] == kind) for kind in KINDS)
    runs = [(context, skipped) for context in (short, long) for skipped in (NOTHING, attentions, mlps)]

    def time_run(context: int, skipped: SkipSet) -> float:
        stand_in(cache, context)
        return time_pass(runner, 1, skipped)

    seconds = dict(zip(runs, least_times([partial(time_run, *run) for run in runs], budget_s), strict=True))
    cache.truncate(0)

    def share_s(context: int, skipped: SkipSet) -> float:
        return max(0.0, seconds[context, NOTHING] - seconds[context, skipped]) / num_layers

    scale = whole.step_s(1) / seconds[short, NOTHING]
    slope = (share_s(long, attentions) - share_s(short, attentions)) / max(1, long - short)
    return SkipCosts(
        whole=whole,
        attention_s=scale * share_s(short, attentions),
        mlp_s=scale * share_s(short, mlps),
        context=short,
        attention_slope_s=scale * max(0.0, slope),
        num_layers=num_layers,
    )
