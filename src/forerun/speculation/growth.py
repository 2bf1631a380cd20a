"""Which nodes of the draft tree to expand next, and which children are worth keeping."""

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence

from forerun.speculation.tree import TokenTree


class BestFirstGrowth:
    """Best-first search for the `horizon` likeliest nodes.

    The frontier holds the nodes not yet expanded. A node can only lead into the horizon if it is likelier than its last
    member, since children are never likelier than their parents; when no frontier node is, growth ends early. It also
    ends when the nodes it would expand next are together less likely to be reached than `min_mass`: an expansion costs
    the same whatever it is worth. A guess that the draft gives less than `min_confidence` is kept and never expanded.

    A tree that is cut once needs a horizon as wide as the cut. One that outlives its cuts is re-rooted at what was
    accepted, so it needs the nodes of later cuts too.

    Source: SpecExec, arXiv 2406.02532, algorithm 1; we drop hopeless children at once instead of compacting later.
    Re-rooting: SwiftSpec, arXiv 2506.11309, section 3.
    """

    def __init__(
        self, root_token: int, *, horizon: int, draft_width: int, min_mass: float = 0.0, min_confidence: float = 0.0
    ) -> None:
        self.tree = TokenTree(root_token)
        self._horizon, self._draft_width, self._min_mass = horizon, draft_width, min_mass
        self._max_doubt = -math.log(min_confidence) if min_confidence else math.inf  # -log prob of a guess alone
        self._frontier: list[tuple[float, int, int]] = [(0.0, 0, 0)]  # (-log prob, depth, node), ascending
        self._best_costs = padded([0.0], horizon)  # -log prob of the horizon's members, ascending

    def next_batch(self, num_worth: Callable[[Sequence[float]], int] | None = None) -> list[int]:
        """Up to draft_width nodes to expand now, likeliest first; empty when growth has ended.

        Args:
            num_worth: how many nodes of these chances, likeliest first, are worth expanding; None: all of them or none,
                by min_mass.
        """
        num_open = bisect_left(self._frontier, (self._best_costs[-1],))  # those that can lead into the horizon
        entries = self._frontier[: min(num_open, self._draft_width)]
        chances = [math.exp(-cost) for cost, _, _ in entries]
        if num_worth is not None:
            num_taken = num_worth(chances)
        else:
            num_taken = len(entries) if sum(chances) >= self._min_mass else 0
        del self._frontier[:num_taken]
        return [node for _, _, node in entries[:num_taken]]

    def add_children(self, parent: int, token_ids: Sequence[int], log_probs: Sequence[float]) -> None:
        """Add an expanded node's children.

        Args:
            parent: the expanded node.
            token_ids: distinct tokens, likeliest first.
            log_probs: their log-probabilities given the parent, each <= 0, descending.
        """
        tree, best_costs = self.tree, self._best_costs
        parent_cost, depth = -tree.log_probs[parent], tree.depths[parent] + 1
        known = tree.children(parent)
        for token_id, log_prob in zip(token_ids, log_probs, strict=True):
            cost = parent_cost - min(log_prob, 0.0)  # rounding may leave a hair above zero
            if not cost < best_costs[-1]:
                return  # outside the horizon, impossible, or not a number
            if token_id not in known:
                self._push(
                    tree.add(parent, token_id, -cost), cost, depth, is_open=cost - parent_cost <= self._max_doubt
                )

    def add_chain(self, token_ids: Sequence[int], log_probs: Sequence[float]) -> None:
        """Hang a chain of guesses below the root; see `TokenTree.add_chain`."""
        tree = self.tree
        for node in tree.add_chain(token_ids, log_probs):
            self._push(node, -tree.log_probs[node], tree.depths[node])

    def frontier_chance(self) -> float:
        """The chance that the text reaches one of the nodes that would be expanded next."""
        return math.fsum(math.exp(-cost) for cost, _, _ in self._frontier[: self._draft_width])

    def chances(self) -> list[float]:
        """The chances of the horizon's members, likeliest first."""
        return [math.exp(-cost) for cost in self._best_costs if cost < math.inf]

    def reroot(self, node: int) -> dict[int, int]:
        """Make `node` the root and forget what does not lie below it; return the map from old to new nodes."""
        self.tree, places = self.tree.subtree(node)
        costs = [-log_prob for log_prob in self.tree.log_probs]
        kept = [places[old] for _, _, old in self._frontier if old in places]
        self._frontier = sorted((costs[new], self.tree.depths[new], new) for new in kept)
        self._best_costs = padded(sorted(costs)[: self._horizon], self._horizon)
        return places

    def _push(self, node: int, cost: float, depth: int, *, is_open: bool = True) -> None:
        if is_open:
            insort(self._frontier, (cost, depth, node))
        insort(self._best_costs, cost)
        self._best_costs.pop()


def padded(costs: list[float], horizon: int) -> list[float]:
    """The costs of a horizon's members; infinite where it has room."""
    return costs + [math.inf] * (horizon - len(costs))
