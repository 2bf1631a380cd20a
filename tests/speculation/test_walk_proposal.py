"""A proposal that cannot be verified is recognised, whatever is wrong with it."""

from collections.abc import Callable

import pytest

from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import find_fault


def sound_tree() -> TokenTree:
    tree = TokenTree(7)
    tree.add(0, 3, -0.1)
    tree.add(0, 4, -0.2)
    tree.add(1, 5, -0.3)
    return tree


def fault_of(tree: TokenTree) -> str | None:
    return find_fault(tree, root=7, max_nodes=4, vocab_size=10)


def test_a_sound_proposal_has_no_fault() -> None:
    assert fault_of(sound_tree()) is None
    assert fault_of(TokenTree(7)) is None


FAULTS: dict[str, Callable[[TokenTree], object]] = {
    "another root": lambda tree: tree.token_ids.__setitem__(0, 6),
    "too many nodes": lambda tree: tree.add(0, 1, -1.0),
    "an id too large": lambda tree: tree.token_ids.__setitem__(2, 10),
    "a negative id": lambda tree: tree.token_ids.__setitem__(3, -1),
    "a parent behind its child": lambda tree: tree.parents.__setitem__(1, 3),
    "a later parent of the right depth": lambda tree: [
        tree.parents.__setitem__(1, 2),
        tree.depths.__setitem__(1, 2),
        tree.depths.__setitem__(3, 3),
    ],
    "a node as its own parent": lambda tree: tree.parents.__setitem__(2, 2),
    "a second root": lambda tree: tree.parents.__setitem__(2, -1),
    "a wrong depth": lambda tree: tree.depths.__setitem__(3, 1),
    "a root below the root": lambda tree: tree.depths.__setitem__(0, 1),
    "lists of unequal length": lambda tree: tree.parents.pop(),
    "no nodes": lambda tree: [tree.token_ids.clear(), tree.parents.clear(), tree.depths.clear()],
}


@pytest.mark.parametrize("kind", FAULTS)
def test_every_fault_is_named(kind: str) -> None:
    tree = sound_tree()
    FAULTS[kind](tree)
    assert fault_of(tree)
