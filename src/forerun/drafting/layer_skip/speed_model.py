"""Tokens per second of a skip set, and the fastest set under additive penalties."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from forerun.core.pace import Pace
from forerun.core.sublayers import SkipSet, Sublayer, skippable
from forerun.drafting.layer_skip.penalties import Floats, sigmoids
from forerun.drafting.layer_skip.settings import TUNED
from forerun.drafting.layer_skip.skip_costs import SkipCosts, numbers_of


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
        best, gain, power = 0.0, 1.0, 1.0
        for depth in range(1, self.max_depth + 1):
            power *= chance
            gain += power
            best = max(best, gain / (depth * token_s + self._verify_s[depth]))
        return best

    def speeds(self, chances: Floats, num_attention: Floats, num_mlp: Floats, context: int) -> Floats:
        """`speed` of many sets at once, from the numbers of sublayers of each kind that they skip; shapes broadcast."""
        costs, whole_s = self.costs, self.costs.whole_at(context)
        saved_s = num_attention * costs.attention_at(context)
        token_s = np.maximum(whole_s / 100, whole_s - saved_s - num_mlp * costs.mlp_s) + self.expansion_s
        best = np.zeros(np.broadcast_shapes(chances.shape, token_s.shape))
        power, gain = chances.copy(), chances + 1.0
        for depth in range(1, self.max_depth + 1):
            if depth > 1:
                power *= chances
                gain += power
            np.maximum(best, gain / (depth * token_s + self._verify_s[depth]), out=best)
        return best

    def best_set(self, intercept: float, penalties: Floats, context: int, num_skipped: int | None = None) -> SkipSet:
        """The set with the most expected tokens per second if log-odds are the intercept minus the skipped penalties.

        All sublayers of a kind cost the same. So for given numbers of each kind, the best set skips those with the
        lowest penalties, and trying all pairs of numbers is exact. The empty set is excluded if its draft passes are
        no faster than plain decoding.

        Source: KnapSpec (arXiv 2602.20217) solves a knapsack over the same costs by dynamic programming.

        Args:
            penalties: in log-odds, [items] in the order of `skippable`.
            num_skipped: sublayers to skip; None: the number is chosen for speed.
        """
        penalties = np.maximum(penalties, TUNED.least_penalty)
        orders = [kind.argsort(kind="stable") for kind in (penalties[0::2], penalties[1::2])]
        lost_attention, lost_mlp = (
            np.concatenate(([0.0], penalties[place::2][order].cumsum())) for place, order in enumerate(orders)
        )
        numbers = np.arange(float(len(lost_mlp)))
        lost = lost_attention[:, None] + lost_mlp
        speeds = self.speeds(sigmoids(intercept - lost), numbers[:, None], numbers, context)
        if num_skipped is not None:
            speeds[numbers[:, None] + numbers != num_skipped] = 0.0
        elif self.costs.whole_at(context) >= self.target.step_s(1):
            speeds[0, 0] = 0.0
        num_attention, num_mlp = divmod(int(speeds.argmax()), len(lost_mlp))
        chosen = [*(2 * orders[0][:num_attention]).tolist(), *(2 * orders[1][:num_mlp] + 1).tolist()]
        return frozenset([self._items[number] for number in chosen])

    @cached_property
    def _items(self) -> tuple[Sublayer, ...]:
        return skippable(self.costs.num_layers)

    @cached_property
    def _verify_s(self) -> list[float]:
        """Seconds of a round without its drafting, by depth from 0 on."""
        return [self.target.step_s(depth + 1) + self.round_s for depth in range(self.max_depth + 1)]
