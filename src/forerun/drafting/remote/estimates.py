"""Expected tokens of a tree by its probabilities, and running means of measurements."""

import math
from collections.abc import Iterable
from typing import Final

from forerun.speculation.tree import TokenTree

SMOOTHING: Final = 0.2  # weight of the newest measurement in a running mean; the last three have half the weight


def expected_tokens(tree: TokenTree, width: int) -> float:
    """Expected accepted tokens of the `width` likeliest nodes, by the tree's probabilities, without the root."""
    return math.fsum(likeliest(tree.log_probs[1:], width - 1))


def expansion_gain(tree: TokenTree, verify_width: int, draft_width: int, *, coverage: float = 1.0) -> float:
    """The expected accepted tokens that an expansion adds to a proposal: those of the new children minus those of the
    nodes whose rows they would take.

    Args:
        verify_width: rows of a proposal.
        draft_width: nodes of an expansion, which are the tree's likeliest leaves.
        coverage: the share of a node's probability that its children have.
    """
    inner = set(tree.parents)
    leaves = likeliest([value for node, value in enumerate(tree.log_probs) if node not in inner], draft_width)
    rows = likeliest(tree.log_probs[1:], verify_width - 1)
    rows += [0.0] * (verify_width - 1 - len(rows))
    return math.fsum(max(0.0, coverage * leaf - row) for leaf, row in zip(leaves, reversed(rows), strict=False))


def likeliest(log_probs: Iterable[float], number: int) -> list[float]:
    """The largest of these probabilities, likeliest first."""
    return [math.exp(log_prob) for log_prob in sorted(log_probs, reverse=True)[:number]]


def blend(mean: float, newest: float) -> float:
    """An exponential running mean; 0 before the first measurement, then initialised to it."""
    return (1 - SMOOTHING) * mean + SMOOTHING * newest if mean else newest
