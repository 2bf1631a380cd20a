"""Chooses how many rows of a tree to verify and how many nodes to expand, for the most tokens per second.

Callers pass in times; no clock is read.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from typing import Final

from forerun.core.pace import Pace
from forerun.speculation.economy.chances import Trust
from forerun.speculation.economy.costs import RoundCosts, blend, blend_time
from forerun.speculation.tree import TokenTree

FIRST_CHILDREN: Final = (0.6, 0.15, 0.05)  # prior probabilities of a node's children


class WidthRule:
    """Chooses the widths of a round that give the most expected tokens per second.

    The next round, which is probably similar, can give the tokens that this round does not. So a row or an expansion
    pays if it raises this round's tokens per second. Comparing with the long-run speed would be wrong in a text of easy
    and hard parts, because a hard part cannot be skipped.

    Source: OPT-Tree (arXiv 2406.17276) and Sequoia (arXiv 2402.12374) optimise a fixed tree size in advance; here each
    round is optimised separately.

    Args:
        target: seconds of a round by its rows; a `RoundCosts` may also be corrected by others.
        draft: seconds of an expansion by its nodes; None: expansions run in parallel to the target.
        expansion_s: initial seconds of an expansion beyond its pass.
    """

    def __init__(self, target: RoundCosts | Pace, draft: Pace | None, *, expansion_s: float = 0.0) -> None:
        self.costs = RoundCosts(target) if isinstance(target, Pace) else target
        self.change_draft(draft)
        self.beyond_expansion_s = expansion_s  # recent mean time of expansions beyond their passes
        self._spent_s = 0.0
        self._children = list(FIRST_CHILDREN)
        self._trust = Trust()
        self._num_rows = 1
        self._num_expected = 0.0

    def change_draft(self, draft: Pace | None) -> None:
        """Replace the times of draft passes."""
        self._expansion_s = None if draft is None else cache(draft.step_s)

    def begin_round(self) -> None:
        self._spent_s = 0.0
        self._num_expected = 0.0

    def end_round(self, num_accepted: int, seconds: float | None = None) -> None:
        """Record the number of accepted nodes, and the round's total time unless it is measured elsewhere."""
        self._trust.measure(self._num_expected, num_accepted)
        if seconds is not None:
            self.costs.measure(self._num_rows, seconds - self._spent_s)

    def spend(self, seconds: float) -> None:
        """Record other time of this round, such as a draft pass that is not an expansion."""
        self._spent_s += seconds

    def measure_expansion(self, num_nodes: int, seconds: float) -> None:
        """Record an expansion of this round."""
        self._spent_s += seconds
        if self._expansion_s is not None:
            pass_s = self._expansion_s(num_nodes)
            self.beyond_expansion_s = blend_time(self.beyond_expansion_s, seconds - pass_s, pass_s)

    def measure_children(self, chances: Sequence[float]) -> None:
        """Record the chances, likeliest first, of an expanded node's children given the node."""
        children = self._children
        children += [0.0] * (len(chances) - len(children))
        for rank, chance in enumerate(chances):
            children[rank] = blend(children[rank], chance)

    def num_rows(self, chances: Sequence[float], most: int) -> int:
        """Rows to verify, root included.

        Args:
            chances: acceptance probability of every node, likeliest first, the root (1) included.
        """
        believed = self._believed(chances[:most])
        speeds = self._speeds(believed, 0.0)
        self._num_rows = 1 + max(range(len(speeds)), key=speeds.__getitem__)
        self._num_expected = math.fsum(chances[1 : self._num_rows])
        return self._num_rows

    def num_nodes(self, frontier: Sequence[float], tree: Sequence[float], most: int) -> int:
        """Nodes to expand next, likeliest first; 0 if an expansion does not pay.

        Adds their likely children to the tree and compares the best speed with them to the best speed without, since a
        child that replaces another node gains only the difference between them. A root without children is always
        expanded, because this comparison looks only one expansion ahead.

        Args:
            frontier: chances of the nodes that could be expanded, likeliest first.
            tree: chances of all nodes, likeliest first, the root (1) included.
            most: rows that can be verified.
        """
        if self._expansion_s is None or len(tree) == 1 or not frontier:
            return len(frontier)
        factor = self._trust.factor
        tree = self._believed(tree[:most])
        frontier = [factor * chance for chance in frontier]
        speed = max(self._speeds(tree, 0.0))
        nodes_s = [self._expansion_s(nodes) for nodes in range(1, len(frontier) + 1)]
        num_nodes = 1
        while num_nodes < len(frontier) and (
            frontier[num_nodes] * self._children[0] > speed * (nodes_s[num_nodes] - nodes_s[num_nodes - 1])
        ):
            num_nodes += 1
        children = [node * child for node in frontier[:num_nodes] for child in self._children]
        grown = sorted([*tree, *children], reverse=True)[:most]
        faster = max(self._speeds(grown, nodes_s[num_nodes - 1] + self.beyond_expansion_s))
        return num_nodes if faster > speed else 0

    def _believed(self, chances: Sequence[float]) -> list[float]:
        """The chances of nodes, likeliest first, corrected by how often such guesses were right; the root's stays 1."""
        factor = self._trust.factor
        return [1.0, *[factor * chance for chance in chances[1:]]]

    def _speeds(self, chances: Sequence[float], extra_s: float) -> list[float]:
        """Expected tokens per second of this round for each number of rows, with `extra_s` added to its time."""
        base_s = self._spent_s + extra_s
        round_s = self.costs.all_s(len(chances))
        return [gain / (base_s + cost_s) for gain, cost_s in zip(accumulate(chances), round_s, strict=False)]


def rows_to_verify(
    tree: TokenTree, most: int, rule: WidthRule | None, chances: Callable[[], Sequence[float]] | None = None
) -> TokenTree:
    """The likeliest nodes of a tree: at most `most`, or fewer if the rule finds that more do not pay.

    Args:
        chances: returns the chances of the tree's likeliest nodes, if they are known without sorting all nodes.
    """
    width = most
    if rule is not None:
        width = rule.num_rows(chances_of(tree.log_probs) if chances is None else chances(), most)
    return tree.select(tree.best(width))


def chances_of(log_probs: Sequence[float]) -> list[float]:
    """Probabilities from log-probabilities, likeliest first."""
    return sorted(map(math.exp, log_probs), reverse=True)
