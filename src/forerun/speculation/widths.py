"""How many rows to verify and how many nodes to expand: marginal tokens against marginal time."""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from forerun.core.pace import Pace

SMOOTHING: Final = 0.02  # weight of the newest round in the running means
FIRST_CHILDREN: Final = (0.6, 0.15, 0.05)  # chances of a node's children before anything is known


class WidthRule:
    """Chooses the widths of each round so that the tokens per second of the whole text are most.

    Rounds follow each other, so this is a renewal process: the policy that maximises tokens per second over many
    rounds also maximises `tokens - rate * seconds` of each, where rate is the tokens per second it reaches. A row or an
    expansion is worth its time exactly if it brings more tokens than the text would grow by in that time otherwise.

    Source: OPT-Tree (arXiv 2406.17276) and Sequoia (arXiv 2402.12374) weigh rows against their time with a size fixed
    beforehand; here the exchange rate is the speed that the text has reached so far.

    Args:
        target: seconds of a verification by its rows.
        draft: seconds of an expansion by its nodes; None: expansions are not waited for.
    """

    def __init__(self, target: Pace, draft: Pace | None) -> None:
        self._target_s = [target.step_s(rows) for rows in range(1, target.steps[-1][0] + 1)]
        self._draft = draft
        self._tokens = self._seconds = self._overhead_s = 0.0
        self._children = list(FIRST_CHILDREN)
        self.rate = 1.0 / self._target_s[0]

    def measure(self, num_tokens: int, seconds: float) -> None:
        """Take a finished round."""
        self._tokens = blend(self._tokens, num_tokens)
        self._seconds = blend(self._seconds, seconds)
        self.rate = self._tokens / self._seconds

    def measure_expansion(self, num_nodes: int, seconds: float) -> None:
        """Take an expansion: what it took beyond its pass."""
        if self._draft is not None:
            self._overhead_s = blend(self._overhead_s, max(0.0, seconds - self._draft.step_s(num_nodes)))

    def measure_children(self, chances: Sequence[float]) -> None:
        """Take the chances, likeliest first, of an expanded node's children given the node."""
        for rank, chance in enumerate(chances):
            if rank < len(self._children):
                self._children[rank] = blend(self._children[rank], chance)
            else:
                self._children.append(chance)

    def num_rows(self, chances: Sequence[float], most: int) -> int:
        """Rows to verify, root included.

        Args:
            chances: of every node that it will be accepted, likeliest first, the root (1) included.
        """
        values = self._values(chances[:most])
        return 1 + max(range(len(values)), key=values.__getitem__)

    def num_nodes(self, frontier: Sequence[float], tree: Sequence[float], most: int) -> int:
        """Nodes to expand next, likeliest first; 0 where an expansion is not worth its time.

        Their likely children are put into the tree, and the best cut with them is compared with the best one without:
        a child that only takes the row of another node is worth no more than the difference.

        Args:
            frontier: chances of the nodes that could be expanded, likeliest first.
            tree: chances of all nodes, likeliest first, the root (1) included.
            most: rows that can be verified.
        """
        if self._draft is None or not frontier:
            return len(frontier)
        costs_s = [self._draft.step_s(nodes) for nodes in range(1, len(frontier) + 1)]
        best_child, num_nodes = self._children[0], 1
        while num_nodes < len(frontier) and frontier[num_nodes] * best_child > self.rate * (
            costs_s[num_nodes] - costs_s[num_nodes - 1]
        ):
            num_nodes += 1
        children = [node * child for node in frontier[:num_nodes] for child in self._children]
        grown = sorted([*tree, *children], reverse=True)
        gain = max(self._values(grown[:most])) - max(self._values(tree[:most]))
        return num_nodes if gain > self.rate * (costs_s[num_nodes - 1] + self._overhead_s) else 0

    def _values(self, chances: Sequence[float]) -> list[float]:
        """Tokens less what the time would bring otherwise, of every number of rows."""
        rate = self.rate
        return [gain - rate * cost_s for gain, cost_s in zip(accumulate(chances), self._target_s, strict=False)]


def blend(mean: float, newest: float) -> float:
    """A running mean; the first value counts whole."""
    return mean + SMOOTHING * (newest - mean) if mean else newest


def chances_of(log_probs: Sequence[float]) -> list[float]:
    """Log-probabilities to chances, likeliest first."""
    return sorted(map(math.exp, log_probs), reverse=True)
