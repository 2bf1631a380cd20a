"""Which nodes of the draft tree to expand next, and which children are worth keeping."""

import heapq
import math
from bisect import insort
from collections.abc import Sequence

from forerun.speculation.tree import TokenTree


class BestFirstGrowth:
    """Best-first search for the `verify_width` likeliest nodes.

    The frontier holds the nodes not yet expanded. A node can only lead into the cut if it is likelier than the cut's
    last member, since children are never likelier than their parents; when no frontier node is, growth ends early. It
    also ends when the nodes it would expand next are together less likely to be reached than `min_mass`: an expansion
    costs the same whatever it is worth.

    Source: SpecExec, arXiv 2406.02532, algorithm 1; we drop hopeless children at once instead of compacting later.
    """

    def __init__(self, root_token: int, *, verify_width: int, draft_width: int, min_mass: float = 0.0) -> None:
        self.tree = TokenTree(root_token)
        self._verify_width, self._draft_width, self._min_mass = verify_width, draft_width, min_mass
        self._frontier: list[tuple[float, int, int]] = [(0.0, 0, 0)]  # (-log prob, depth, node)
        self._cut_costs: list[float] = [0.0]  # -log prob of the cut's members, ascending

    def next_batch(self) -> list[int]:
        """Up to draft_width nodes to expand now, likeliest first; empty when growth has ended."""
        batch: list[int] = []
        while self._frontier and len(batch) < self._draft_width and self._can_enter(self._frontier[0][0]):
            batch.append(heapq.heappop(self._frontier)[2])
        mass = sum(math.exp(self.tree.log_probs[node]) for node in batch)
        return batch if mass >= self._min_mass else []

    def add_children(self, parent: int, token_ids: Sequence[int], log_probs: Sequence[float]) -> None:
        """Add an expanded node's children.

        Args:
            parent: the expanded node.
            token_ids: distinct tokens, likeliest first.
            log_probs: their log-probabilities given the parent, each <= 0, descending.
        """
        tree = self.tree
        parent_log_prob, depth = tree.log_probs[parent], tree.depths[parent] + 1
        known = tree.children(parent)
        for token_id, log_prob in zip(token_ids, log_probs, strict=True):
            if not log_prob > float("-inf"):
                return  # impossible, or not a number: no guess
            cost = -parent_log_prob - min(log_prob, 0.0)  # rounding may leave a hair above zero
            if not self._can_enter(cost):
                return
            if token_id not in known:
                self._push(tree.add(parent, token_id, -cost), cost, depth)

    def add_chain(self, token_ids: Sequence[int], log_prob: float) -> None:
        """Hang a chain of guesses below a new tree's root, each token as likely as `log_prob` given the one before."""
        assert len(self.tree) == 1, f"a tree of {len(self.tree)} nodes is not fresh"
        for depth, token_id in enumerate(token_ids, start=1):
            self._push(self.tree.add(depth - 1, token_id, depth * log_prob), -depth * log_prob, depth)

    def cut(self) -> list[int]:
        """The nodes to verify: at most verify_width, root first, ancestor-closed, ascending."""
        return self.tree.best(self._verify_width)

    def _push(self, node: int, cost: float, depth: int) -> None:
        heapq.heappush(self._frontier, (cost, depth, node))
        insort(self._cut_costs, cost)
        del self._cut_costs[self._verify_width :]

    def _can_enter(self, cost: float) -> bool:
        """True while something this likely would be a member of the cut."""
        return len(self._cut_costs) < self._verify_width or cost < self._cut_costs[-1]
