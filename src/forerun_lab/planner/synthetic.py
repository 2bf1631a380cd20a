"""Synthetic traces of a pair of models, for a given acceptance length.

At every position the draft's likeliest token has a probability drawn from Beta(1.2, 0.4). 15 % of the rest is outside
the tree; the other 85 % is spread over seven further children, each half as likely as the one before. The target's
token is drawn with exactly these probabilities, and positions are independent.

Real text has long predictable passages, so these traces underestimate parallel drafting: compared with SwiftSpec's
table 7, they lose about twice as much by drafting in parallel as real traces do. Record real traces where possible.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from forerun.core.drafter_config import DraftModel
from forerun.core.errors import ConfigError
from forerun.core.pace import Pace
from forerun.drafting.policies import Policies, TreePolicy
from forerun_lab.planner.simulate import Costs, simulate
from forerun_lab.planner.trace import AnswerTrace

TOP_ALPHA = 1.2
TOP_BETA = 0.4
NUM_OTHERS = 7
RATIO = 0.5
OUTSIDE = 0.15
LEAST_EXPONENT = 1e-3
MOST_EXPONENT = 30.0
MAX_BISECTIONS: Final = 16
CLOSE: Final = 0.004  # tolerance on the acceptance
LEAST_PROBABILITY: Final = 1e-9
FREE: Final = Costs(target=Pace(steps=((1 << 20, 1.0),)), draft=Pace(steps=((1 << 20, 1.0),)))  # times do not matter
# The tree with which an acceptance is defined: five expansions of 8 nodes, of which 8 rows are verified.
REFERENCE: Final = DraftModel(verify_width=8, draft_width=8, depth=5, adaptive=False)
REFERENCE_POLICIES: Final = Policies(tree=TreePolicy(num_children=NUM_OTHERS + 1, min_mass=0.0, looks_up=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticPair:
    """A distribution of answers that stands for a pair of models.

    Args:
        exponent: the likeliest token's probability is raised to this power; a smaller one means a better draft.
    """

    exponent: float = 1.0
    num_answers: int = 16
    num_tokens: int = 128
    seed: int = 0

    def traces(self) -> list[AnswerTrace]:
        """Random answers. All exponents use the same random numbers, so that a better draft is better everywhere."""
        rng = random.Random(self.seed)
        return [self._answer(rng, number * self.num_tokens) for number in range(self.num_answers)]

    def _answer(self, rng: random.Random, first_place: int) -> AnswerTrace:
        """A random answer. No id occurs twice, here or in another answer, because drafters learn what follows an id."""
        token_ids = []
        children = []
        log_probs = []
        for place in range(first_place + 1, first_place + self.num_tokens + 1):
            probabilities = spread(rng.betavariate(TOP_ALPHA, TOP_BETA) ** self.exponent)
            ids = [place * (NUM_OTHERS + 2) + rank for rank in range(len(probabilities))]
            token_ids.append(draw(ids, probabilities, rng.random()))
            children.append(tuple(ids))
            log_probs.append(tuple(math.log(max(value, LEAST_PROBABILITY)) for value in probabilities))
        return AnswerTrace(
            prompt_ids=(1,), token_ids=tuple(token_ids), children=tuple(children), log_probs=tuple(log_probs)
        )


USUAL_PAIR: Final = SyntheticPair()


def spread(top: float) -> list[float]:
    """Probabilities of the children, likeliest first."""
    weights = [RATIO**rank for rank in range(NUM_OTHERS)]
    scale = (1.0 - top) * (1.0 - OUTSIDE) / sum(weights)
    return sorted([top, *(scale * weight for weight in weights)], reverse=True)


def draw(ids: Sequence[int], probabilities: Sequence[float], uniform: float) -> int:
    """Draw one of the ids with its probability, or else the next unused id."""
    for token_id, probability in zip(ids, probabilities, strict=True):
        uniform -= probability
        if uniform < 0.0:
            return token_id
    return ids[-1] + 1


def accepted_per_round(traces: Sequence[AnswerTrace]) -> float:
    """Mean number of accepted tokens per round with the reference tree, without the bonus token."""
    return simulate(traces, REFERENCE, FREE, REFERENCE_POLICIES).accepted_per_round


def traces_for(accepted: float, pair: SyntheticPair = USUAL_PAIR) -> list[AnswerTrace]:
    """Traces with `accepted` accepted tokens per round, without the bonus token.

    Raises:
        ConfigError: no exponent gives this number.
    """

    def accepts(exponent: float) -> float:
        return accepted_per_round(replace(pair, exponent=exponent).traces())

    worst = accepts(MOST_EXPONENT)
    best = accepts(LEAST_EXPONENT)
    if not worst <= accepted <= best:
        raise ConfigError(
            f"{accepted:g} accepted tokens per round are not possible with {REFERENCE.verify_width} rows and "
            f"{REFERENCE.depth} levels, only {worst:.2f} to {best:.2f}: count accepted tokens without the bonus token"
        )
    return replace(pair, exponent=bisect(accepts, accepted)).traces()


def bisect(falling: Callable[[float], float], wanted: float) -> float:
    """The exponent at which a decreasing function takes this value, by bisection on a logarithmic scale."""
    low = math.log(LEAST_EXPONENT)
    high = math.log(MOST_EXPONENT)
    for _ in range(MAX_BISECTIONS):
        middle = 0.5 * (low + high)
        value = falling(math.exp(middle))
        if abs(value - wanted) <= CLOSE * wanted:
            break
        low, high = (middle, high) if value > wanted else (low, middle)
    return math.exp(middle)
