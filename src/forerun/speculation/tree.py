"""The draft tree."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

HOPELESS: Final = -500.0  # log-probability at or below which a node is never proposed


class TokenTree:
    """Nodes with parents before children; node 0 is the root, the last committed token.

    Invariants: parents[i] < i; siblings have distinct tokens; log_probs[child] <= log_probs[parent]; growing only
    appends. Only the code that grows the tree writes to it. Plain lists are faster than arrays at these sizes.

    `chain` holds the tokens last added by `add_chain`, to tell which drafter guessed those nodes.
    """

    __slots__ = ("chain", "depths", "log_probs", "parents", "token_ids")

    def __init__(self, root_token: int) -> None:
        self.chain: Sequence[int] = ()
        self.token_ids = [root_token]
        self.parents = [-1]
        self.depths = [0]
        self.log_probs = [0.0]

    @classmethod
    def of(cls, token_ids: Sequence[int], parents: Sequence[int], log_probs: Sequence[float]) -> "TokenTree":
        """A tree from its lists; the root's entries in `parents` and `log_probs` are ignored."""
        tree = cls(token_ids[0])
        tree.token_ids = list(token_ids)
        tree.parents = [-1, *parents[1:]]
        tree.log_probs = [0.0, *log_probs[1:]]
        depths = tree.depths
        for parent in tree.parents[1:]:
            depths.append(depths[parent] + 1)
        return tree

    def __len__(self) -> int:
        return len(self.token_ids)

    def add(self, parent: int, token_id: int, log_prob: float) -> int:
        """Append a child of `parent` with its cumulative log-probability; return its index."""
        self.token_ids.append(token_id)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        self.log_probs.append(log_prob)
        return len(self.token_ids) - 1

    def add_chain(self, token_ids: Sequence[int], log_probs: Sequence[float]) -> list[int]:
        """Add a chain below the root, with log_probs conditional on the previous token; return the new nodes.

        Tokens at the chain's start that are in the tree already are not added again.
        """
        added: list[int] = []
        here = 0
        self.chain = token_ids
        for token_id, log_prob in zip(token_ids, log_probs, strict=True):
            node = None if added else self.children(here).get(token_id)
            if node is None:
                node = self.add(here, token_id, self.log_probs[here] + log_prob)
                added.append(node)
            here = node
        return added

    def children(self, parent: int) -> dict[int, int]:
        """The children of `parent`, as a map from token to node."""
        parents = self.parents
        token_ids = self.token_ids
        try:
            first = parents.index(parent, parent + 1)
        except ValueError:
            return {}
        return {token_ids[node]: node for node in range(first, len(parents)) if parents[node] == parent}

    def path_tokens(self, node: int) -> list[int]:
        """Tokens from below the root down to `node`."""
        tokens: list[int] = []
        while node > 0:
            tokens.append(self.token_ids[node])
            node = self.parents[node]
        return tokens[::-1]

    def descend(self, token_ids: Sequence[int]) -> list[int]:
        """The nodes along `token_ids` from below the root, as far as they are in the tree."""
        nodes: list[int] = []
        here = 0
        own_ids = self.token_ids
        wanted = iter(token_ids)
        token_id = next(wanted, None)
        for node, parent in enumerate(self.parents):  # one pass meets every child after its parent
            if parent == here and own_ids[node] == token_id:
                nodes.append(node)
                here = node
                token_id = next(wanted, None)
        return nodes

    def copy(self) -> "TokenTree":
        """An independent tree with the same nodes."""
        copied = TokenTree(self.token_ids[0])
        copied.token_ids = self.token_ids.copy()
        copied.parents = self.parents.copy()
        copied.depths = self.depths.copy()
        copied.log_probs = self.log_probs.copy()
        copied.chain = self.chain
        return copied

    def select(self, nodes: Sequence[int]) -> "TokenTree":
        """The tree of `nodes`, which must be ascending and ancestor-closed, with the new root first."""
        assert nodes and sorted(set(nodes)) == list(nodes), f"nodes {nodes}"
        places = {node: place for place, node in enumerate(nodes)}
        root, *others = nodes
        lone = {self.parents[node] for node in others} - places.keys()
        assert not lone, f"a child of {lone} is kept without its parent, in {nodes}"
        base_depth = self.depths[root]
        base_log_prob = self.log_probs[root]
        chosen = TokenTree(self.token_ids[root])
        chosen.token_ids += [self.token_ids[node] for node in others]
        chosen.parents += [places[self.parents[node]] for node in others]
        chosen.depths += [self.depths[node] - base_depth for node in others]
        chosen.log_probs += [self.log_probs[node] - base_log_prob for node in others]
        if root == 0:
            chosen.chain = self.chain
        return chosen

    def subtree(self, root: int) -> tuple["TokenTree", dict[int, int]]:
        """The tree below `root` as a separate tree, and the map from old to new indices."""
        places = {root: 0}
        for node, parent in enumerate(self.parents[root + 1 :], root + 1):
            if parent in places:
                places[node] = len(places)
        return self.select(list(places)), places

    def best(self, width: int) -> list[int]:
        """The `width` likeliest nodes, ascending, without hopeless ones.

        Ties go to the lower depth, then to the earlier node. The result is ancestor-closed, since no child is likelier
        than its parent, and an equally likely one is deeper.
        """
        if width >= len(self) and min(self.log_probs) > HOPELESS:
            return list(range(len(self)))
        ranked = sorted(zip([-log_prob for log_prob in self.log_probs], self.depths, range(len(self)), strict=True))
        return sorted([node for cost, _, node in ranked[:width] if -cost > HOPELESS])


class AncestryRows:
    """The rows of an ancestry matrix: each has its parent's flags and its own.

    Rows are bytes rather than an array, because copying a short one is then a single quick call.
    """

    def __init__(self) -> None:
        self._rows: list[bytes] = []  # row i has i + 1 flags

    def add(self, parent: int) -> int:
        """Append a child row of the row `parent` (-1: of none); return its number."""
        rows = self._rows
        number = len(rows)
        rows.append(rows[parent].ljust(number, b"\0") + b"\1" if parent >= 0 else b"\0" * number + b"\1")
        return number

    def matrix(self, first: int = 0) -> NDArray[np.bool_]:
        """[N - first, N] bool: the rows from `first` on, and which of all N rows they attend to."""
        num_rows = len(self._rows)
        flags = bytearray().join([row.ljust(num_rows, b"\0") for row in self._rows[first:]])
        return np.ndarray((num_rows - first, num_rows), np.bool_, flags)


def ancestry_matrix(parents: Sequence[int]) -> NDArray[np.bool_]:
    """[N, N] bool: row i is true at i and at every ancestor of i. parents[i] < i; the root's parent is -1."""
    rows = AncestryRows()
    for parent in parents:
        rows.add(parent)
    return rows.matrix()
