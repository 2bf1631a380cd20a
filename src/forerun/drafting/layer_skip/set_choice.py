"""What a skip set is worth in tokens per second, and the one worth most if damages add up."""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from forerun.core.pace import Pace
from forerun.core.sublayers import ATTENTION, SkipSet, Sublayer, skippable
from forerun.drafting.layer_skip.penalties import Floats, sigmoids
from forerun.drafting.layer_skip.skip_costs import SkipCosts

LEAST_DAMAGE: Final = 0.005  # in log-odds: nothing is skipped for the good it does, since such luck does not last


def expected_speed(
    chance: float, draft_s: float, target: Pace, round_s: float, expansion_s: float, max_depth: int
) -> tuple[float, int]:
    """Tokens per second with chains of the best length, and that length, from 1 up.

    Args:
        chance: that a drafted token is right if the ones before it are.
        draft_s: seconds of a draft pass of one row.
        target: seconds of a verification by its rows.
        round_s: seconds of a round beyond its passes.
        expansion_s: seconds beyond its pass that each drafted token takes.
        max_depth: the longest chain.
    """
    return fastest(
        chance, draft_s + expansion_s, [target.step_s(depth + 1) + round_s for depth in range(max_depth + 1)]
    )


def fastest(chance: float, token_s: float, verify_s: list[float]) -> tuple[float, int]:
    """Most tokens per second over depths, and the depth; `verify_s` are seconds of a round but for its drafting."""
    best, best_depth = 0.0, 1
    gain = power = 1.0
    for depth in range(1, len(verify_s)):
        power *= chance
        gain += power
        speed = gain / (depth * token_s + verify_s[depth])
        if speed > best:
            best, best_depth = speed, depth
    return best, best_depth


@dataclass(frozen=True, kw_only=True)
class Economy:
    """What drafting with a skip set costs and brings on one machine.

    Args:
        costs: seconds of draft passes by what they skip.
        target: seconds of a verification by its rows.
        round_s: seconds of a round beyond its passes.
        expansion_s: seconds beyond its pass that each drafted token takes.
        plain_s: seconds of a round without a draft beyond its pass.
        max_depth: the longest chain that is drafted.
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
        """Expected tokens per second of drafting with this set."""
        return self.plan(chance, skipped, context)[0]

    def plan(self, chance: float, skipped: SkipSet, context: int) -> tuple[float, int]:
        """Expected tokens per second of drafting with this set, and the depth of chain that brings most."""
        num_attention = sum(kind == ATTENTION for _, kind in skipped)
        draft_s = self.costs.draft_s(num_attention, len(skipped) - num_attention, context)
        return fastest(chance, draft_s + self.expansion_s, self._verify_s)

    def speeds(self, chances: Floats, num_attention: Floats, num_mlp: Floats, context: int) -> Floats:
        """`speed` of many sets at once, given how many sublayers of each kind they skip; the shapes broadcast."""
        whole_s = self.costs.whole_at(context)
        draft_s = np.maximum(
            whole_s / 100,
            whole_s - num_attention * self.costs.attention_at(context) - num_mlp * self.costs.mlp_s,
        )
        token_s = draft_s + self.expansion_s
        best = np.zeros(np.broadcast_shapes(chances.shape, token_s.shape))
        power, gain = chances.copy(), chances + 1.0
        for depth in range(1, self.max_depth + 1):
            if depth > 1:
                power *= chances
                gain += power
            np.maximum(best, gain / (depth * token_s + self._verify_s[depth]), out=best)
        return best

    def best_set(self, intercept: float, damages: Floats, context: int, num_skipped: int | None = None) -> SkipSet:
        """The set of most expected tokens per second if log-odds are the intercept less the damages of what is skipped.

        Sublayers of a kind cost the same. So whatever the number of each kind, the best set skips the least harmful
        ones, and trying all pairs of numbers is exact. The empty set is none where its drafts cost what
        plain decoding does.

        Source: KnapSpec (arXiv 2602.20217) solves a knapsack over the same costs by dynamic programming.

        Args:
            damages: in log-odds, [items] in the order of `skippable`.
            num_skipped: how many sublayers to skip; None: as many as pay.
        """
        damages = np.maximum(damages, LEAST_DAMAGE)
        attention, mlp = damages[0::2], damages[1::2]
        attention_order, mlp_order = attention.argsort(kind="stable"), mlp.argsort(kind="stable")
        lost_attention = np.concatenate(([0.0], attention[attention_order].cumsum()))
        lost_mlp = np.concatenate(([0.0], mlp[mlp_order].cumsum()))
        if num_skipped is None:
            numbers = np.arange(float(len(lost_mlp)))
            lost = lost_attention[:, None] + lost_mlp
            speeds = self.speeds(sigmoids(intercept - lost), numbers[:, None], numbers, context)
            if self.costs.whole_at(context) >= self.target.step_s(1):
                speeds[0, 0] = 0.0
            num_attention, num_mlp = divmod(int(speeds.argmax()), len(lost_mlp))
        else:
            counts = np.arange(max(0, num_skipped - len(mlp)), min(num_skipped, len(attention)) + 1)
            lost = lost_attention[counts] + lost_mlp[num_skipped - counts]
            attentions = counts.astype(np.float64)
            speeds = self.speeds(sigmoids(intercept - lost), attentions, num_skipped - attentions, context)
            num_attention = int(counts[speeds.argmax()])
            num_mlp = num_skipped - num_attention
        chosen = [*(2 * attention_order[:num_attention]).tolist(), *(2 * mlp_order[:num_mlp] + 1).tolist()]
        return frozenset([self._items[number] for number in chosen])

    @cached_property
    def _items(self) -> tuple[Sublayer, ...]:
        return skippable(self.costs.num_layers)

    @cached_property
    def _verify_s(self) -> list[float]:
        """Seconds of a round but for its drafting, by depth from 0 up."""
        return [self.target.step_s(depth + 1) + self.round_s for depth in range(self.max_depth + 1)]
