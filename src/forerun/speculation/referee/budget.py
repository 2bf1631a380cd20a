"""What a drafter may propose in a round: so many rows, and the expansions that are worth their time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Final

from forerun.core.pace import Pace
from forerun.speculation.referee.costs import RoundCosts, blend, blend_time
from forerun.speculation.referee.records import Trust
from forerun.speculation.tree import TokenTree

FIRST_CHILDREN: Final = (0.6, 0.15, 0.05)  # prior probabilities of a node's children


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCosts:
    """What a drafter's own passes cost.

    Args:
        expansion: seconds of an expansion by its nodes; None: expansions run in parallel to the target, or are free.
        expansion_overhead_s: initial seconds of an expansion beyond its pass.
        round_overhead_s: initial seconds of a round beyond the target's pass.
    """

    expansion: Pace | None = None
    expansion_overhead_s: float = 0.0
    round_overhead_s: float = 0.0


FREE: Final = DraftCosts()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedTree:
    """A drafter's tree, of which the referee has as many nodes verified as are worth their rows.

    Args:
        tree: its root is the last committed token.
        known_chances: acceptance probabilities of its likeliest nodes, likeliest first, the root (1) included; None:
            they follow from the tree's log-probabilities.
    """

    tree: TokenTree
    known_chances: Sequence[float] | None = None

    @property
    def chances(self) -> Sequence[float]:
        """The acceptance probabilities, likeliest first, the root (1) included."""
        if self.known_chances is not None:
            return self.known_chances
        return sorted(map(math.exp, self.tree.log_probs), reverse=True)


class RowBudget:
    """The rows of one drafter's proposals, and the expansions that grow them, chosen for the most tokens per second.

    The next round, which is probably similar, can give the tokens that this round does not. So a row or an expansion
    pays if it raises this round's tokens per second. Comparing with the long-run speed would be wrong in a text of easy
    and hard parts, because a hard part cannot be skipped.

    The referee begins and ends its rounds; the drafter asks it for expansions, and tells it what they took.

    Source: OPT-Tree (arXiv 2406.17276) and Sequoia (arXiv 2402.12374) optimise a fixed tree size in advance; here each
    round is optimised separately.

    Args:
        verify_width: most rows of a proposal, root included.
        costs: seconds of a round by its rows; None: widths are fixed, and nothing is weighed.
        own: what the drafter's own passes cost.
    """

    def __init__(self, verify_width: int, costs: RoundCosts | None = None, own: DraftCosts = FREE) -> None:
        self.verify_width = verify_width
        self.max_rows = verify_width  # of this round
        self.costs = costs
        self.change_expansion(own.expansion)
        self.expansion_overhead_s = own.expansion_overhead_s  # recent mean time of expansions beyond their passes
        self._spent_s = 0.0
        self._children = list(FIRST_CHILDREN)
        self._trust = Trust()
        self._num_expected = 0.0
        self._has_guess = False

    @property
    def is_fixed(self) -> bool:
        """True if widths are used in full."""
        return self.costs is None

    def change_expansion(self, expansion: Pace | None) -> None:
        """Replace the times of draft passes."""
        self._expansion_s = None if expansion is None else cache(expansion.step_s)

    def start_round(self, max_rows: int) -> None:
        """Allow this many rows."""
        self.max_rows = min(max_rows, self.verify_width)
        self._spent_s = 0.0
        self._num_expected = 0.0
        self._has_guess = False

    def end_round(self, num_accepted: int) -> None:
        """Record the number of accepted nodes."""
        if self._has_guess:
            self._trust.measure(self._num_expected, num_accepted)

    def spend(self, seconds: float) -> None:
        """Record other time of this round, such as a draft pass that is not an expansion."""
        self._spent_s += seconds

    def measure_expansion(self, num_nodes: int, seconds: float) -> None:
        """Record an expansion of this round."""
        self._spent_s += seconds
        if self._expansion_s is not None:
            pass_s = self._expansion_s(num_nodes)
            self.expansion_overhead_s = blend_time(self.expansion_overhead_s, seconds - pass_s, pass_s)

    def measure_children(self, chances: Sequence[float]) -> None:
        """Record the chances, likeliest first, of an expanded node's children given the node."""
        children = self._children
        children += [0.0] * (len(chances) - len(children))
        for rank, chance in enumerate(chances):
            children[rank] = blend(children[rank], chance)

    def cut(self, proposal: ProposedTree) -> TokenTree:
        """The likeliest nodes of a proposal, as many as are worth verifying."""
        tree = proposal.tree
        return tree.select(tree.best(self.max_rows if self.is_fixed else self.num_rows(proposal.chances)))

    def num_rows(self, chances: Sequence[float]) -> int:
        """Rows to verify, root included.

        Args:
            chances: acceptance probability of every node, likeliest first, the root (1) included.
        """
        self._has_guess = len(chances) > 1
        speeds = self._speeds(self._believed(chances[: self.verify_width]), 0.0)
        num_rows = 1 + max(range(len(speeds)), key=speeds.__getitem__)
        self._num_expected = math.fsum(chances[1:num_rows])
        return num_rows

    def num_nodes(self, frontier: Sequence[float], tree: Sequence[float]) -> int:
        """Nodes to expand next, likeliest first; 0 if an expansion does not pay.

        Adds their likely children to the tree and compares the best speed with them to the best speed without, since a
        child that replaces another node gains only the difference between them. A root without children is always
        expanded, because this comparison looks only one expansion ahead.

        Args:
            frontier: chances of the nodes that could be expanded, likeliest first.
            tree: chances of all nodes, likeliest first, the root (1) included.
        """
        if self._expansion_s is None or len(tree) == 1 or not frontier:
            return len(frontier)
        most = self.verify_width
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
        faster = max(self._speeds(grown, nodes_s[num_nodes - 1] + self.expansion_overhead_s))
        return num_nodes if faster > speed else 0

    def _believed(self, chances: Sequence[float]) -> list[float]:
        """The chances of nodes, likeliest first, corrected by how often such guesses were right; the root's stays 1."""
        factor = self._trust.factor
        return [1.0, *[factor * chance for chance in chances[1:]]]

    def _speeds(self, chances: Sequence[float], extra_s: float) -> list[float]:
        """Expected tokens per second of this round for each number of rows, with `extra_s` added to its time."""
        assert self.costs is not None, "widths are fixed"
        base_s = self._spent_s + extra_s
        round_s = self.costs.all_s(min(len(chances), self.max_rows))
        return [gain / (base_s + cost_s) for gain, cost_s in zip(accumulate(chances), round_s, strict=False)]
