"""Estimated times of passes with some sublayers skipped, tokens per second with a set, and the fastest set."""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final

import numpy as np
import torch

from forerun.core.pace import Pace
from forerun.core.sublayers import (
    ATTENTION,
    MLP,
    NOTHING,
    SkipSet,
    Sublayer,
    absent_sublayers,
    all_sublayers,
    skippable,
)
from forerun.drafting.layer_skip.skip_penalties import Floats, sigmoids
from forerun.model.pass_times import empty_cache, least_times, stand_in, time_pass
from forerun.model.self_drafting import DraftRunner
from forerun.speculation.referee.depths import Number, at_least, chain_speed

ROUND_S: Final = 0.3e-3  # seconds of a drafting round in addition to its passes, until measured
EXPANSION_S: Final = 0.06e-3  # seconds of a drafted token in addition to its pass, until measured
LEAST_PENALTY: Final = 0.005  # lower bound on a sublayer's penalty, in log-odds; lower estimates are due to chance
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
        absent: sublayers that they lack.
    """

    whole: Pace
    attention_s: float
    mlp_s: float
    context: int
    attention_slope_s: float
    num_layers: int
    absent: SkipSet = NOTHING

    def attention_at(self, context: int) -> float:
        """Seconds of one attention sublayer at this context length."""
        return max(0.0, self.attention_s + self.attention_slope_s * (context - self.context))

    def whole_at(self, context: int) -> float:
        """Seconds of a pass of one row with every sublayer."""
        num_attention = self.num_layers - numbers_of(self.absent)[0]
        return self.whole.step_s(1) + num_attention * (self.attention_at(context) - self.attention_s)

    def draft_s(self, num_attention: Number, num_mlp: Number, context: int) -> Number:
        """Seconds of a one-row pass that skips this many sublayers of each kind, at least 1 % of a pass."""
        whole_s = self.whole_at(context)
        seconds: Number = at_least(
            whole_s / 100, whole_s - num_attention * self.attention_at(context) - num_mlp * self.mlp_s
        )
        return seconds

    def draft(self, skipped: SkipSet, context: int) -> Pace:
        """The pace of draft passes that skip these, assumed to scale with the number of rows as a whole pass does."""
        share = self.draft_s(*numbers_of(skipped), context) / self.whole.step_s(1)
        return Pace(steps=tuple((rows, seconds * share) for rows, seconds in self.whole.steps))


def numbers_of(skipped: SkipSet) -> tuple[int, int]:
    """Numbers of attention and MLP sublayers skipped."""
    num_attention = sum(kind == ATTENTION for _, kind in skipped)
    return num_attention, len(skipped) - num_attention


@dataclass(frozen=True, kw_only=True)
class SpeedModel:
    """Cost and gain of drafting with a skip set on one machine, with chains of the best length.

    Args:
        costs: seconds of draft passes by skipped sublayers.
        target: seconds of a verification by its rows.
        round_s: seconds of a round in addition to its passes.
        expansion_s: seconds of each drafted token in addition to its pass.
        plain_s: seconds of a plain round in addition to its pass.
        max_depth: length of the longest chain.
    """

    costs: SkipCosts
    target: Pace
    round_s: float = 0.0
    expansion_s: float = 0.0
    plain_s: float = 0.0
    max_depth: int = 8

    def plain_speed(self) -> float:
        """Tokens per second without drafting."""
        return 1.0 / (self.target.step_s(1) + self.plain_s)

    def speed(self, chance: float, skipped: SkipSet, context: int) -> float:
        """Expected tokens per second of drafting with this set.

        Args:
            chance: probability that a drafted token is accepted if the ones before it are.
        """
        token_s = self.costs.draft_s(*numbers_of(skipped), context) + self.expansion_s
        return chain_speed(chance, token_s, self._verify_s)

    def speeds(self, chances: Floats, num_attention: Floats, num_mlp: Floats, context: int) -> Floats:
        """`speed` of many sets at once, from the numbers of sublayers of each kind that they skip; shapes broadcast."""
        token_s = self.costs.draft_s(num_attention, num_mlp, context) + self.expansion_s
        return chain_speed(chances, token_s, self._verify_s)

    def best_set(self, intercept: float, penalties: Floats, context: int) -> SkipSet:
        """The set with the most expected tokens per second if log-odds are the intercept minus the skipped penalties.

        All sublayers of a kind cost the same. So for given numbers of each kind, the best set skips those with the
        lowest penalties, and trying all pairs of numbers is exact. The empty set is excluded if its draft passes are
        no faster than plain decoding.

        Source: KnapSpec (arXiv 2602.20217) solves a knapsack over the same costs by dynamic programming.

        Args:
            penalties: in log-odds, [items] in the order of `skippable`.
        """
        penalties = np.maximum(penalties, LEAST_PENALTY)
        of_kinds = [np.flatnonzero([part[1] == kind for part in self._items]) for kind in KINDS]
        orders = [places[penalties[places].argsort(kind="stable")] for places in of_kinds]
        lost_attention, lost_mlp = (np.concatenate(([0.0], penalties[order].cumsum())) for order in orders)
        attentions, mlps = (np.arange(float(len(lost))) for lost in (lost_attention, lost_mlp))
        chances = sigmoids(intercept - (lost_attention[:, None] + lost_mlp))
        speeds = self.speeds(chances, attentions[:, None], mlps, context)
        if self.costs.whole_at(context) >= self.target.step_s(1):
            speeds[0, 0] = 0.0
        num_attention, num_mlp = divmod(int(speeds.argmax()), len(lost_mlp))
        chosen = [*orders[0][:num_attention].tolist(), *orders[1][:num_mlp].tolist()]
        return frozenset([self._items[number] for number in chosen])

    @cached_property
    def _items(self) -> tuple[Sublayer, ...]:
        return skippable(self.costs.num_layers, self.costs.absent)

    @cached_property
    def _verify_s(self) -> list[float]:
        """Seconds of a round without its drafting, by depth from 0 on."""
        return [self.target.step_s(depth + 1) + self.round_s for depth in range(self.max_depth + 1)]


@torch.inference_mode()
def measure_skip_costs(runner: DraftRunner, whole: Pace, *, budget_s: float = 0.2) -> SkipCosts:
    """Measure the time of each kind of sublayer, by passes without that kind at a short and at a long context.

    Empties the cache.

    Args:
        whole: seconds of a pass with all sublayers, by its rows.
        budget_s: seconds after which no further repeat starts.
    """
    cache = empty_cache(runner)
    num_layers = runner.spec.num_layers
    short = min(SHORT_CONTEXT, (cache.capacity - 1) // 2)
    long = min(LONG_CONTEXT, cache.capacity - 1)
    absent = absent_sublayers(runner.spec)
    present = frozenset(all_sublayers(num_layers)) - absent
    attentions, mlps = (frozenset(part for part in present if part[1] == kind) for kind in KINDS)
    runs = [(context, skipped) for context in (short, long) for skipped in (NOTHING, attentions, mlps)]

    def time_run(context: int, skipped: SkipSet) -> float:
        stand_in(cache, context)
        return time_pass(runner, 1, skipped)

    seconds = dict(zip(runs, least_times([partial(time_run, *run) for run in runs], budget_s), strict=True))
    cache.truncate(0)

    def share_s(context: int, skipped: SkipSet) -> float:
        return max(0.0, seconds[context, NOTHING] - seconds[context, skipped]) / max(1, len(skipped))

    scale = whole.step_s(1) / seconds[short, NOTHING]
    slope = (share_s(long, attentions) - share_s(short, attentions)) / max(1, long - short)
    return SkipCosts(
        whole=whole,
        attention_s=scale * share_s(short, attentions),
        mlp_s=scale * share_s(short, mlps),
        context=short,
        attention_slope_s=scale * max(0.0, slope),
        num_layers=num_layers,
        absent=absent,
    )
