"""Which nodes of the draft tree to expand next, and which children to keep."""

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import takewhile
from math import exp, isfinite, log
from operator import itemgetter
from typing import Final, TypeAlias

from forerun.speculation.tree import HOPELESS, TokenTree

NUM_BINS: Final = 10
BIN_WIDTH: Final = 0.5  # in log-probability; the last bin is open
NUM_RANKS: Final = 4  # rank classes; the last one is open
NUM_DEPTHS: Final = 3  # depth classes: 1, 2 to 3, deeper
CELLS_PER_BIN: Final = NUM_DEPTHS * NUM_RANKS
PRIOR_TRIALS: Final = 20.0  # weight, in trials, of the draft's probability as a bin's prior, and of a bin as a cell's
MOST_DOUBT: Final = -math.log(0.2)  # -log prob up to which a node's children are foreseen, which takes about 20 us
NOT_PROPOSED: Final = 2 * HOPELESS  # log-probability of a foreseen child that the draft then does not propose
LEAST_LOG_PROB: Final = -600.0  # floor that keeps the probability above 0 in a float, even after many failures
MEMORY: Final = 2000.0  # limit on a cell's trials, above which old ones are discounted


Foresee: TypeAlias = Callable[[int], Sequence[tuple[int, float]]]
NO_ENTRY: Final = math.inf, 0, -1  # stands for an entry after the frontier's end


class BestFirstGrowth:
    """Best-first search for the `horizon` likeliest nodes.

    The horizon is the list of the likeliest nodes, the frontier that of nodes not yet expanded. Children are never
    likelier than their parents, so expanding a node can change the horizon only if the node is likelier than the
    horizon's last member; growth ends when no frontier node is. It also ends when the nodes to expand next have
    together a smaller chance of being reached than `min_mass`, because an expansion costs the same whatever its gain. A
    guess to which the draft gives a lower probability than `min_confidence` is kept but never expanded.

    A tree from which nodes are selected once needs a horizon as wide as the selection. A tree that is re-rooted at the
    accepted node and used again needs a wider one, for the selections of later rounds.

    Source: SpecExec, arXiv 2406.02532, algorithm 1; we drop children outside the horizon at once instead of compacting
    later.
    Re-rooting: SwiftSpec, arXiv 2506.11309, section 3.
    """

    def __init__(
        self, root_token: int, *, horizon: int, draft_width: int, min_mass: float = 0.0, min_confidence: float = 0.0
    ) -> None:
        self.tree = TokenTree(root_token)
        self._horizon = horizon
        self._draft_width = draft_width
        self._min_mass = min_mass
        self._max_doubt = -math.log(min_confidence) if min_confidence else math.inf  # -log prob given the parent
        self._frontier: list[tuple[float, int, int]] = [(0.0, 0, 0)]  # (-log prob, depth, node), ascending
        self._best_costs = padded([0.0], horizon)  # -log prob of the horizon's members, ascending
        self._foreseen: set[int] = set()  # nodes in the same batch as their parents

    def next_batch(self, num_worth: Callable[[Sequence[float]], int] | None = None) -> list[int]:
        """Up to draft_width nodes to expand now, likeliest first; empty when growth has ended.

        Args:
            num_worth: returns how many nodes of the given chances, likeliest first, are worth expanding; None: all of
                them or none, by min_mass.
        """
        num_open = bisect_left(self._frontier, (self._best_costs[-1],))  # nodes whose children may join the horizon
        entries = self._frontier[: min(num_open, self._draft_width)]
        chances = [math.exp(-cost) for cost, _, _ in entries]
        if num_worth is not None:
            num_taken = num_worth(chances)
        else:
            num_taken = len(entries) if sum(chances) >= self._min_mass else 0
        del self._frontier[:num_taken]
        return [node for _, _, node in entries[:num_taken]]

    def next_batch_ahead(self, foresee: Foresee) -> list[int]:
        """As `next_batch`, but the batch may also contain foreseen children of its own nodes, parents before children.

        `add_children` must then be called for each node of the batch, in this order.

        Args:
            foresee: returns the tokens that the draft may propose after a node, and their log-probabilities.
        """
        frontier = self._frontier
        limit = self._best_costs[-1]
        num_known = 0
        if math.fsum(math.exp(-cost) for cost, _, _ in frontier[: self._draft_width]) < self._min_mass:
            return []
        batch: list[int] = []
        foreseen: list[tuple[float, int, int, int]] = []  # (-log prob, depth, parent, token), a heap
        for num_left in range(self._draft_width - 1, -1, -1):
            cost, depth, node = frontier[num_known] if num_known < len(frontier) else NO_ENTRY
            if foreseen and foreseen[0][:2] < (cost, depth):
                cost, depth, parent, token_id = heappop(foreseen)
                if not cost < limit:
                    break
                node = self.tree.add(parent, token_id, -cost)
                self._foreseen.add(node)
            elif cost < limit:
                num_known += 1
            else:
                break
            batch.append(node)
            if num_left and cost <= MOST_DOUBT:
                self._foresee(node, foresee, foreseen)
        del frontier[:num_known]
        return batch

    def _foresee(self, node: int, foresee: Foresee, foreseen: list[tuple[float, int, int, int]]) -> None:
        """Add the foreseen children of this node to the heap, except those that are in the tree."""
        cost = -self.tree.log_probs[node]
        depth = self.tree.depths[node] + 1
        known = self.tree.children(node)
        for token_id, log_prob in foresee(node):
            if token_id not in known:
                heappush(foreseen, (cost - min(log_prob, 0.0), depth, node, token_id))

    def add_children(
        self, parent: int, token_ids: Sequence[int], log_probs: Sequence[float], *, num_open: int | None = None
    ) -> list[int]:
        """Add an expanded node's children; return the added ones and the foreseen ones that are among `token_ids`.

        Args:
            parent: the expanded node.
            token_ids: distinct tokens, likeliest first.
            log_probs: their log-probabilities given the parent, each <= 0, descending.
            num_open: only so many of them, from the first, may be expanded; None: all.
        """
        tree = self.tree
        frontier = self._frontier
        best_costs = self._best_costs
        parent_cost = -tree.log_probs[parent]
        depth = tree.depths[parent] + 1
        added = []
        known = tree.children(parent)
        if known and self._foreseen:
            added = self._settle(parent_cost, known, dict(zip(token_ids, log_probs, strict=True)))
        for token_id, log_prob in zip(token_ids, log_probs, strict=True):
            cost = parent_cost - min(log_prob, 0.0)  # rounding may leave a value slightly above zero
            if not cost < best_costs[-1] or parent_cost > -HOPELESS:
                break  # outside the horizon, impossible, or not a number
            if token_id not in known:
                node = tree.add(parent, token_id, -cost)
                added.append(node)
                if cost - parent_cost <= self._max_doubt and (num_open is None or len(added) <= num_open):
                    insort(frontier, (cost, depth, node))
                insort(best_costs, cost)
                best_costs.pop()
        return added

    def add_chain(self, token_ids: Sequence[int], log_probs: Sequence[float]) -> None:
        """Add a chain of guesses below the root; see `TokenTree.add_chain`."""
        tree = self.tree
        for node in tree.add_chain(token_ids, log_probs):
            cost = -tree.log_probs[node]
            insort(self._frontier, (cost, tree.depths[node], node))
            insort(self._best_costs, cost)
            self._best_costs.pop()

    def chances(self) -> list[float]:
        """The probabilities of the horizon's members, likeliest first."""
        return [math.exp(-cost) for cost in self._best_costs if cost < math.inf]

    def reroot(self, node: int) -> dict[int, int]:
        """Make `node` the root and drop all but its subtree; return the map from old to new nodes."""
        self.tree, places = self.tree.subtree(node)
        costs = [-log_prob for log_prob in self.tree.log_probs]
        kept = [places[old] for _, _, old in self._frontier if old in places]
        self._frontier = sorted((costs[new], self.tree.depths[new], new) for new in kept)
        self._best_costs = padded(sorted(costs)[: self._horizon], self._horizon)
        return places

    def _settle(self, parent_cost: float, children: Mapping[int, int], proposed: Mapping[int, float]) -> list[int]:
        """Give foreseen children their actual log-probabilities, known now that their parent is expanded; return those
        that the draft proposed."""
        settled: list[int] = []
        for token_id, node in children.items():
            if node in self._foreseen:
                self._foreseen.remove(node)
                cost = parent_cost - min(proposed.get(token_id, NOT_PROPOSED), 0.0)
                if not cost < min(self._best_costs[-1], -HOPELESS):
                    cost = parent_cost - NOT_PROPOSED
                else:
                    settled.append(node)
                    insort(self._best_costs, cost)
                    self._best_costs.pop()
                self.tree.log_probs[node] = -cost
        return settled


def padded(costs: list[float], horizon: int) -> list[float]:
    """The costs of a horizon's members, padded with infinity to its size."""
    return costs + [math.inf] * (horizon - len(costs))


class CalibratedGuesses:
    """Adds children to a growth with calibrated probabilities, learnt from the text.

    It stays apart from the referee's records: it says how likely a single guess is, as a part of the proposal, and not
    how good its drafter is.

    The table is kept across trees and requests; the map from nodes to cells belongs to one tree.
    """

    def __init__(self) -> None:
        self._table = AcceptanceTable()
        self._cells: dict[int, int] = {}  # node to its cell of the table

    def add(
        self, growth: BestFirstGrowth, node: int, token_ids: Sequence[int], log_probs: Sequence[float]
    ) -> list[float]:
        """Add an expanded node's children, given in the draft's order; return their calibrated log-probabilities, best
        first."""
        tree = growth.tree
        log_probs = list(takewhile(isfinite, log_probs))  # impossible tokens are never added
        cells, values = self._table.calibrate(log_probs, tree.depths[node] + 1)
        ranked = sorted(zip(values, token_ids, cells, strict=False), key=itemgetter(0), reverse=True)
        token_ids = [token_id for _, token_id, _ in ranked]
        values = [value for value, _, _ in ranked]
        children = growth.add_children(node, token_ids, values)
        if children:
            cell_of = {token_id: cell for _, token_id, cell in ranked}
            for child in children:
                self._cells[child] = cell_of[tree.token_ids[child]]
        return values

    def told(self, tree: TokenTree, visited: Sequence[int], token_ids: Sequence[int]) -> None:
        """Count for every node that the text has passed which of its guesses was right."""
        for node, token_id in zip(visited, token_ids, strict=False):
            for guess, child in tree.children(node).items():
                if child in self._cells:
                    self._table.count(self._cells[child], guess == token_id)

    def reroot(self, places: Mapping[int, int]) -> None:
        """Renumber the nodes; drop those without a new number."""
        self._cells = {places[node]: cell for node, cell in self._cells.items() if node in places}


class AcceptanceTable:
    """The share of guesses that were right, by bin of the draft's log-probability, depth, and rank among siblings.

    A cell with few trials is shrunk towards its bin, and a bin with few trials towards the draft's probability.

    Source: the calibration of EAGLE-2 (arXiv 2406.16858, section 3.2), made online; SwiftSpec ranks by raw log q.
    """

    def __init__(self) -> None:
        self._num_true = [0.0] * (NUM_BINS * CELLS_PER_BIN + NUM_BINS)  # all cells, then the bins
        self._num_tried = [0.0] * len(self._num_true)

    def calibrate(self, log_probs: Sequence[float], depth: int) -> tuple[list[int], list[float]]:
        """The cell of each sibling, likeliest first, and the calibrated log-probability that it is right."""
        num_true = self._num_true
        num_tried = self._num_tried
        place = 0 if depth == 1 else 1 if depth <= 3 else 2
        cells = []
        values = []
        for rank, log_prob in enumerate(log_probs):
            bin_ = int(min(NUM_BINS - 1, max(0.0, -log_prob) / BIN_WIDTH))
            cell = (bin_ * NUM_DEPTHS + place) * NUM_RANKS + min(rank, NUM_RANKS - 1)
            bin_ += NUM_BINS * CELLS_PER_BIN
            drafted = exp(max(log_prob, LEAST_LOG_PROB))
            chance = (num_true[bin_] + PRIOR_TRIALS * drafted) / (num_tried[bin_] + PRIOR_TRIALS)
            cells.append(cell)
            values.append(log((num_true[cell] + PRIOR_TRIALS * chance) / (num_tried[cell] + PRIOR_TRIALS)))
        return cells, values

    def count(self, cell: int, came_true: float) -> None:
        """Record one guess's outcome, or its probability."""
        for place in (bin_of(cell), cell):
            if self._num_tried[place] >= MEMORY:
                self._num_true[place] *= 0.5
                self._num_tried[place] *= 0.5
            self._num_true[place] += came_true
            self._num_tried[place] += 1.0


def bin_of(cell: int) -> int:
    """The index of a cell's bin."""
    return NUM_BINS * CELLS_PER_BIN + cell // CELLS_PER_BIN
