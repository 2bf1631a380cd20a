"""Follow the target's choices down the draft tree."""

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.speculation.tree import TokenTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """One round's outcome.

    Args:
        path: indices of the accepted nodes from below the root down.
        bonus_token: the target's choice where the walk ended.
        tokens: the accepted nodes' tokens and the bonus token: len(tokens) == len(path) + 1.
    """

    path: tuple[int, ...]
    bonus_token: int
    tokens: tuple[int, ...]


def walk(tree: TokenTree, choices: Sequence[int]) -> Acceptance:
    """Accept a child exactly when its token is the target's choice at its parent.

    Exact for any tree, greedy or sampled: the tree decides how far one walk gets, never which token is chosen.

    Args:
        tree: N nodes, parents before children, so that one pass in order meets every child after its parent.
        choices: N tokens, the target's choice after each node.

    Source: SpecExec, arXiv 2406.02532 (verification); we separate choosing from walking.
    """
    assert len(choices) == len(tree), f"{len(choices)} choices for {len(tree)} nodes"
    parents, token_ids = tree.parents, tree.token_ids
    here = 0
    path: list[int] = []
    for node in range(1, len(token_ids)):
        if parents[node] == here and token_ids[node] == choices[here]:
            here = node
            path.append(node)
    bonus = choices[here]
    return Acceptance(path=tuple(path), bonus_token=bonus, tokens=(*[token_ids[node] for node in path], bonus))
