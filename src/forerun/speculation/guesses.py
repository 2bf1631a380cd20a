"""A draft's guesses in a tree, worth what guesses of their kind were worth so far."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from math import exp, isfinite
from operator import itemgetter

from forerun.speculation.calibration import AcceptanceTable
from forerun.speculation.growth import BestFirstGrowth
from forerun.speculation.tree import TokenTree


class CalibratedGuesses:
    """Hangs children into a growth by calibrated chances, and learns from what the text did.

    The table outlives trees and requests; the record of which node is of which kind lives as long as its tree.
    """

    def __init__(self) -> None:
        self._table = AcceptanceTable()
        self._cells: dict[int, int] = {}  # node to its cell of the table

    def add(
        self, growth: BestFirstGrowth, node: int, token_ids: Sequence[int], log_probs: Sequence[float]
    ) -> list[float]:
        """Add an expanded node's children, which the draft ranked; return their chances, likeliest first."""
        tree, table = growth.tree, self._table
        log_probs = list(takewhile(isfinite, log_probs))  # what is impossible stays so
        cells = table.cells(log_probs, tree.depths[node] + 1)
        values = list(map(table.log_prob, cells, log_probs))
        ranked = sorted(zip(values, token_ids, strict=False), key=itemgetter(0), reverse=True)
        num_before = len(tree)
        growth.add_children(node, [token_id for _, token_id in ranked], [value for value, _ in ranked])
        if len(tree) > num_before:
            cell_of = dict(zip(token_ids, cells, strict=False))
            for child in range(num_before, len(tree)):
                self._cells[child] = cell_of[tree.token_ids[child]]
        return [exp(value) for value, _ in ranked]

    def learn(self, tree: TokenTree, visited: Sequence[int], token_ids: Sequence[int]) -> None:
        """Count the guesses at every node that the text has passed, and the token that followed each."""
        for node, token_id in zip(visited, token_ids, strict=False):
            for guess, child in tree.children(node).items():
                if child in self._cells:
                    self._table.count(self._cells[child], guess == token_id)

    def reroot(self, places: Mapping[int, int]) -> None:
        """Follow the nodes to their new numbers; forget those that have none."""
        self._cells = {places[node]: cell for node, cell in self._cells.items() if node in places}
