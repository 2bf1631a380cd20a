"""Models as a layer-skip search sees them, with a known truth.

Fitted to the random candidates of two published SWIFT runs (LLaMA-2 13B, which has 40 layers, with 34 of 76 sublayers
skipped, scored at 32 positions): mean and deviation of the scores, which sublayers are most harmful to skip, and how
well a linear model trained on 48, 96, 192 and 384 scores ranks unseen sets.
"""

import math
import random
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from forerun.core.pace import Pace
from forerun.core.sublayers import ATTENTION, MLP, SkipSet, Sublayer, skippable
from forerun.drafting.layer_skip.gated_strategy import GatedStrategy
from forerun.drafting.layer_skip.speed_model import SkipCosts, SpeedModel

CONTEXT: Final = 100
NUM_LAYERS: Final = 40
NUM_SKIPPED: Final = 34
HARMFUL: Final = frozenset(
    {(layer, ATTENTION) for layer in (1, 2, 3, 4, 5, 13)} | {(layer, MLP) for layer in range(1, 7)}
)


@dataclass(frozen=True, kw_only=True)
class Emulator:
    """log-odds of a hit = intercept - penalties of what is skipped + a rest that nothing explains.

    Args:
        penalties: [items] in the order of `skippable`.
        rest: deviation of the rest; the same set always has the same.
        stretch: deviation of what a stretch of text adds to it, each time that the set is scored. The published scores
            cannot tell the two apart; in equal parts they make the paper's rule as good and as bad as it is.
        seed: of the rest.
    """

    intercept: float
    penalties: npt.NDArray[np.float64]
    rest: float
    stretch: float
    seed: int = 0
    num_layers: int = NUM_LAYERS

    def additive(self, skipped: SkipSet) -> float:
        """The chance of a hit but for the rest."""
        return sigmoid(self.intercept - float(self.penalties[self._places(skipped)].sum()))

    def chance(self, skipped: SkipSet) -> float:
        """The true chance of a hit."""
        if skipped not in self._chances:
            places = self._places(skipped)
            rest = self.rest * random.Random(hash((self.seed, *places))).gauss(0.0, 1.0)
            self._chances[skipped] = sigmoid(self.intercept - float(self.penalties[places].sum()) + rest)
        return self._chances[skipped]

    def score(self, skipped: SkipSet, num_rows: int, rng: np.random.Generator) -> int:
        """Hits at so many positions of one stretch."""
        chance = self.chance(skipped)
        logit = math.log(chance / (1.0 - chance)) + self.stretch * float(rng.standard_normal())
        return int(rng.binomial(num_rows, sigmoid(logit)))

    def _places(self, skipped: SkipSet) -> list[int]:
        return sorted(self._place[sublayer] for sublayer in skipped)

    @cached_property
    def _chances(self) -> dict[SkipSet, float]:
        return {}

    @cached_property
    def _place(self) -> dict[tuple[int, str], int]:
        return {item: place for place, item in enumerate(skippable(self.num_layers))}


def emulator(
    seed: int,
    *,
    mean: float,
    harm: float,
    usual: float,
    spread: float,
    rest: float,
    stretch: float,
    harmful: Collection[Sublayer] = HARMFUL,
) -> Emulator:
    """An emulator by its log-odds.

    Args:
        mean: of random sets of 34.
        harm: added to the penalties of harmful sublayers, more or less.
        usual, spread: mean of all penalties, and their deviation as a share of it.
        rest, stretch: deviations of what is not a sum, of a set and of a stretch.
        harmful: the sublayers that do most harm.
    """
    rng = np.random.default_rng(seed)
    items = skippable(NUM_LAYERS)
    penalties = rng.gamma(spread**-2, usual * spread**2, len(items))
    for place, item in enumerate(items):
        if item in harmful:
            penalties[place] += harm * rng.uniform(0.6, 1.4)
    intercept = mean + NUM_SKIPPED * float(penalties.mean())
    return Emulator(intercept=intercept, penalties=penalties, rest=rest, stretch=stretch, seed=seed)


def cnn_dm(seed: int, harmful: Collection[Sublayer] = HARMFUL) -> Emulator:
    """Summaries by 13B: scores 0.39 +- 0.19; a linear model ranks unseen sets at 0.34 / 0.46 / 0.56 / 0.63."""
    return emulator(seed, mean=-0.5, harm=0.35, usual=0.1, spread=0.7, rest=0.35, stretch=0.35, harmful=harmful)


def gsm8k(seed: int) -> Emulator:
    """Sums by 13B, less learnable: 0.42 +- 0.17; ranks at 0.18 / 0.27 / 0.29 / 0.39."""
    return emulator(seed, mean=-0.35, harm=0.15, usual=0.08, spread=1.0, rest=0.42, stretch=0.42)


def speed_model(num_layers: int = NUM_LAYERS, *, draft_share: float = 1.0, round_s: float = 0.0005) -> SpeedModel:
    """Of a target whose passes take 20 ms up to 64 rows and whose sublayers of both kinds cost the same.

    Args:
        draft_share: what a draft pass with every sublayer takes of a pass of the target.
    """
    whole_s = 0.02 * draft_share
    costs = SkipCosts(
        whole=Pace(steps=((64, whole_s),)),
        attention_s=0.475 * whole_s / num_layers,
        mlp_s=0.475 * whole_s / num_layers,
        context=CONTEXT,
        attention_slope_s=0.0,
        num_layers=num_layers,
    )
    return SpeedModel(costs=costs, target=Pace(steps=((64, 0.02),)), round_s=round_s, expansion_s=0.0002, max_depth=8)


def best_speed(emulator: Emulator, speed_model: SpeedModel) -> float:
    """Most tokens per second that the penalties alone allow."""
    best = speed_model.best_set(emulator.intercept, emulator.penalties, speed_model.costs.context)
    return speed_model.speed(emulator.additive(best), best, speed_model.costs.context)


def score(search: GatedStrategy, emulator: Emulator, rng: np.random.Generator, until: int, num_rows: int = 8) -> None:
    """Four candidates a round, at so many rows each, until so many evaluations are done."""
    while search.num_scored < until:
        for skipped in search.propose(4, CONTEXT):
            search.told(skipped, emulator.score(skipped, num_rows, rng), num_rows)


def random_set(rng: np.random.Generator, num_skipped: int = NUM_SKIPPED) -> SkipSet:
    items = skippable(NUM_LAYERS)
    return frozenset(items[place] for place in rng.permutation(len(items))[:num_skipped].tolist())


def sigmoid(logit: float) -> float:
    return 1.0 / (1.0 + math.exp(-logit))
