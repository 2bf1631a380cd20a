"""Verification: whether a proposal is well formed, and how far the target's choices follow its tree."""

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.speculation.tree import TokenTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """One round's outcome.

    Args:
        path: indices of the accepted nodes from below the root down.
        tokens: the accepted nodes' tokens and the bonus token: len(tokens) == len(path) + 1.
    """

    path: tuple[int, ...]
    tokens: tuple[int, ...]

    @property
    def bonus_token(self) -> int:
        """The target's choice where the walk ended."""
        return self.tokens[-1]


def walk(tree: TokenTree, choices: Sequence[int]) -> Acceptance:
    """Accept a child exactly when its token is the target's choice at its parent.

    This is exact for any tree, greedy or sampled: the tree decides how many tokens are accepted, never which.

    Args:
        tree: N nodes, parents before children, so that one pass in order meets every child after its parent.
        choices: N tokens, the target's choice after each node.

    Source: SpecExec, arXiv 2406.02532 (verification); we separate choosing from walking.
    """
    assert len(choices) == len(tree), f"{len(choices)} choices for {len(tree)} nodes"
    parents = tree.parents
    token_ids = tree.token_ids
    here = 0
    path: list[int] = []
    for node in range(1, len(token_ids)):
        if parents[node] == here and token_ids[node] == choices[here]:
            here = node
            path.append(node)
    return Acceptance(path=tuple(path), tokens=(*[token_ids[node] for node in path], choices[here]))


def find_fault(tree: TokenTree, *, root: int, max_nodes: int, vocab_size: int) -> str | None:
    """What is wrong with a proposal, or None. Drafters are not trusted.

    Args:
        root: the last committed token, which node 0 must hold.
        max_nodes: the width that was agreed on, root included.
        vocab_size: ids must lie in [0, vocab_size).
    """
    num_nodes = len(tree.token_ids)
    if not 1 <= num_nodes <= max_nodes or not num_nodes == len(tree.parents) == len(tree.depths):
        return f"it has {num_nodes} nodes, but 1 to {max_nodes} were agreed on"
    if tree.token_ids[0] != root or tree.depths[0] != 0:
        return f"its root is token {tree.token_ids[0]}, the last committed token is {root}"
    for node in range(1, num_nodes):
        parent = tree.parents[node]
        if not 0 <= parent < node or tree.depths[node] != tree.depths[parent] + 1:
            return f"node {node} names {parent} as its parent"
        if not 0 <= tree.token_ids[node] < vocab_size:
            return f"node {node} holds token {tree.token_ids[node]}, the target knows ids below {vocab_size}"
    return None
