"""The expected tokens of a tree by its probabilities, and running means of measurements."""

import math
from typing import Final

from forerun.speculation.tree import TokenTree

SMOOTHING: Final = 0.2  # weight of the newest measurement in a running mean: half of it is the last three


def expected_tokens(tree: TokenTree, width: int) -> float:
    """Expected tokens of a cut of `width` nodes by the tree's probabilities, without the root."""
    return math.fsum(sorted(map(math.exp, tree.log_probs[1:]))[-(width - 1) :]) if width > 1 else 0.0


def frontier_chance(tree: TokenTree, width: int) -> float:
    """The chance that the text reaches one of the `width` likeliest leaves, which an expansion would expand."""
    inner = set(tree.parents)
    leaves = (math.exp(log_prob) for node, log_prob in enumerate(tree.log_probs) if node not in inner)
    return math.fsum(sorted(leaves)[-width:])


def blend(mean: float, newest: float) -> float:
    """An exponential running mean; 0 before the first measurement, then initialised to it."""
    return (1 - SMOOTHING) * mean + SMOOTHING * newest if mean else newest
