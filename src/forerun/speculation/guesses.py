"""A draft's guesses in a tree, worth what guesses of their kind were worth so far."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from math import exp, isfinite

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
        log_probs = list(takewhile(isfinite, log_probs))  # what is impossible stays so
        cells = self._table.cells(log_probs, growth.tree.depths[node] + 1)
        values = [self._table.log_prob(cell, log_prob) for cell, log_prob in zip(cells, log_probs, strict=True)]
        order = sorted(range(len(values)), key=lambda rank: -values[rank])
        num_before = len(growth.tree)
        growth.add_children(node, [token_ids[rank] for rank in order], [values[rank] for rank in order])
        cell_of = dict(zip(token_ids, cells, strict=False))
        for child in range(num_before, len(growth.tree)):
            self._cells[child] = cell_of[growth.tree.token_ids[child]]
        return [exp(values[rank]) for rank in order]

    def learn(self, tree: TokenTree, visited: Sequence[int], token_ids: Sequence[int]) -> None:
        """Count the guesses at every node that the text has passed, and the token that followed each."""
        for node, token_id in zip(visited, token_ids, strict=False):
            for guess, child in tree.children(node).items():
                if child in self._cells:
                    self._table.count(self._cells[child], guess == token_id)

    def reroot(self, places: Mapping[int, int]) -> None:
        """Follow the nodes to their new numbers; forget those that have none."""
        self._cells = {places[node]: cell for node, cell in self._cells.items() if node in places}
