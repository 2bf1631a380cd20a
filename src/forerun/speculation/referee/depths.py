"""Chooses the number of draft passes of a round in advance. Callers pass in times; no clock is read."""

from collections.abc import Sequence
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from forerun.speculation.referee.costs import STALL

FORGETTING: Final = 0.98  # factor on the weight of older rounds, per round
FIRST_CHANCE: Final = 0.6  # prior probability that a level is accepted if the one above it was
FIRST_WEIGHT: Final = 4.0  # weight of this prior in rounds
LOOK_FURTHER: Final = 16  # rounds between trials of one level more than seems best
Number = TypeVar("Number", float, npt.NDArray[np.float64])


class DepthRule:
    """Chooses the depth of a round's tree that gives the most expected tokens per second.

    On a GPU a round is one launch with a fixed number of draft passes, which cannot stop early. So the rule uses the
    accepted depths of earlier rounds: it estimates the probability that level j is accepted if level j - 1 was, from
    rounds that were deep enough.

    Args:
        round_s: initial seconds of a round by its depth, 0 .. max_depth; replaced by measurements.
    """

    def __init__(self, round_s: Sequence[float]) -> None:
        self._round_s = list(round_s)
        self._reached = [FIRST_CHANCE * FIRST_WEIGHT] * self.max_depth  # rounds accepted to at least this depth
        self._tried = [FIRST_WEIGHT] * self.max_depth  # rounds in which that was possible
        self._num_rounds = 0

    @property
    def max_depth(self) -> int:
        return len(self._round_s) - 1

    def depth(self) -> int:
        """The depth of the next round."""
        self._num_rounds += 1
        speeds = [tokens / seconds for tokens, seconds in zip(self._tokens(), self._round_s, strict=True)]
        best = max(range(len(speeds)), key=speeds.__getitem__)
        looks_further = self._num_rounds % LOOK_FURTHER == 0
        return min(best + looks_further, self.max_depth)

    def measure(self, depth: int, num_accepted: int, seconds: float) -> None:
        """Record a round of this depth."""
        known_s = self._round_s[depth]
        self._round_s[depth] += (1 - FORGETTING) * (min(seconds, STALL * known_s) - known_s)
        for level in range(min(depth, num_accepted + 1)):
            self._reached[level] = FORGETTING * self._reached[level] + (num_accepted > level)
            self._tried[level] = FORGETTING * self._tried[level] + 1

    def _tokens(self) -> list[float]:
        """Expected tokens of a round by its depth."""
        tokens = [1.0]
        chance = 1.0
        for reached, tried in zip(self._reached, self._tried, strict=True):
            chance *= reached / tried
            tokens.append(tokens[-1] + chance)
        return tokens


def chain_speed(chance: Number, token_s: Number, round_s: Sequence[float]) -> Number:
    """Expected tokens per second of drafting chains of the best length, for one draft or for many at once.

    Args:
        chance: probability that a drafted token is accepted if the ones before it are.
        token_s: seconds per drafted token.
        round_s: seconds of a round without its drafting, by the length of the chain, 0 included.
    """
    power = chance
    tokens = 1.0 + chance
    best = tokens / (token_s + round_s[1])
    for depth, seconds in enumerate(round_s[2:], 2):
        power = power * chance
        tokens = tokens + power
        best = at_least(best, tokens / (depth * token_s + seconds))
    return best


def at_least(least: Any, number: Any) -> Any:
    """The larger of two numbers or arrays, element by element."""
    return np.maximum(least, number) if isinstance(number, np.ndarray) else max(least, number)
