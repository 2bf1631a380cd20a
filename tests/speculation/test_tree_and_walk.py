"""Draft trees: bookkeeping, ancestry, and the walk, each against the slow obvious way."""

import random

import pytest

from forerun.speculation.tree import AncestryRows, TokenTree, ancestry_matrix
from forerun.speculation.walk import walk

NUM_CASES = 500


def random_tree(rng: random.Random, max_nodes: int = 32, vocab_size: int = 6) -> TokenTree:
    """Random parents, distinct tokens among siblings, children never likelier than their parents."""
    tree = TokenTree(rng.randrange(vocab_size))
    for _ in range(rng.randrange(max_nodes)):
        parent = rng.randrange(len(tree))
        token_id = rng.randrange(vocab_size)
        if token_id not in tree.children(parent):
            tree.add(parent, token_id, tree.log_probs[parent] - rng.choice([0.0, 0.5, 1.0, rng.random()]))
    return tree


def ancestors(tree: TokenTree, node: int) -> list[int]:
    """From the node up to the root."""
    found = [node]
    while tree.parents[found[-1]] >= 0:
        found.append(tree.parents[found[-1]])
    return found


@pytest.fixture(params=range(8))
def rng(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.param)


def test_depths_paths_and_children_follow_from_the_parents(rng: random.Random) -> None:
    for _ in range(NUM_CASES // 8):
        tree = random_tree(rng)
        for node in range(len(tree)):
            up = ancestors(tree, node)
            assert tree.depths[node] == len(up) - 1
            assert tree.path_tokens(node) == [tree.token_ids[place] for place in up[-2::-1]]
            expected = {tree.token_ids[place]: place for place in range(len(tree)) if tree.parents[place] == node}
            assert tree.children(node) == expected


def test_a_node_sees_itself_and_its_ancestors_alone(rng: random.Random) -> None:
    for _ in range(NUM_CASES // 8):
        tree = random_tree(rng)
        matrix = ancestry_matrix(tree.parents)
        assert matrix.shape == (len(tree), len(tree))
        for node in range(len(tree)):
            assert set(matrix[node].nonzero()[0].tolist()) == set(ancestors(tree, node))


def test_rows_added_later_see_all_rows_before_them_that_their_parents_see(rng: random.Random) -> None:
    for _ in range(NUM_CASES // 8):
        parents = random_tree(rng).parents
        rows = AncestryRows()
        first = rng.randrange(len(parents))
        assert [rows.add(parent) for parent in parents] == list(range(len(parents)))
        assert (rows.matrix(first) == ancestry_matrix(parents)[first:]).all()
        assert rows.matrix(first).flags.writeable, "torch takes no other array without a warning"


def naive_walk(tree: TokenTree, choices: list[int]) -> tuple[list[int], list[int]]:
    """Path and tokens by looking children up by their token."""
    children: dict[tuple[int, int], int] = {}
    for node in range(1, len(tree)):
        children[tree.parents[node], tree.token_ids[node]] = node
    here = 0
    path = []
    while (here, choices[here]) in children:
        here = children[here, choices[here]]
        path.append(here)
    return path, [*(tree.token_ids[node] for node in path), choices[here]]


def test_one_pass_finds_the_path_that_looking_up_children_finds(rng: random.Random) -> None:
    num_accepted = 0
    for _ in range(NUM_CASES):
        tree = random_tree(rng)
        choices = [rng.randrange(6) for _ in range(len(tree))]
        acceptance = walk(tree, choices)
        path, tokens = naive_walk(tree, choices)
        assert (list(acceptance.path), list(acceptance.tokens)) == (path, tokens)
        assert acceptance.bonus_token == tokens[-1]
        assert len(acceptance.tokens) == len(acceptance.path) + 1 <= max(tree.depths) + 1
        num_accepted += len(path)
    assert num_accepted > 0


def test_a_lone_root_gives_the_targets_choice() -> None:
    acceptance = walk(TokenTree(3), [5])
    assert (acceptance.path, acceptance.bonus_token, acceptance.tokens) == ((), 5, (5,))


def test_a_token_drafted_below_another_node_is_not_accepted() -> None:
    tree = TokenTree(0)
    left = tree.add(0, 1, -1.0)
    right = tree.add(0, 2, -1.0)
    tree.add(left, 7, -2.0)
    assert right == 2
    acceptance = walk(tree, [2, 9, 7, 9])
    assert (acceptance.path, acceptance.tokens) == ((2,), (2, 7))


def test_a_selection_keeps_tokens_paths_and_relative_likelihoods(rng: random.Random) -> None:
    for _ in range(NUM_CASES // 8):
        tree = random_tree(rng)
        nodes = sorted({place for _ in range(3) for place in ancestors(tree, rng.randrange(len(tree)))})
        chosen = tree.select(nodes)
        assert len(chosen) == len(nodes)
        for place, node in enumerate(nodes):
            assert chosen.token_ids[place] == tree.token_ids[node]
            assert chosen.path_tokens(place) == tree.path_tokens(node)
            assert chosen.depths[place] == tree.depths[node]
            assert chosen.log_probs[place] == pytest.approx(tree.log_probs[node])


def test_a_subtree_is_what_hangs_below_its_root(rng: random.Random) -> None:
    for _ in range(NUM_CASES // 8):
        tree = random_tree(rng)
        root = rng.randrange(len(tree))
        below, places = tree.subtree(root)
        assert set(places) == {node for node in range(len(tree)) if root in ancestors(tree, node)}
        assert places[root] == 0
        for node, place in places.items():
            assert below.token_ids[place] == tree.token_ids[node]
            assert below.path_tokens(place) == tree.path_tokens(node)[tree.depths[root] :]


def test_the_best_nodes_are_the_likeliest_and_hang_together(rng: random.Random) -> None:
    for _ in range(NUM_CASES // 8):
        tree = random_tree(rng)
        width = rng.randint(1, 12)
        kept = tree.best(width)
        assert kept == sorted(set(kept))
        assert kept[0] == 0
        assert len(kept) == min(width, len(tree))
        assert all(tree.parents[node] in kept for node in kept[1:])
        ranked = sorted(tree.log_probs, reverse=True)[: len(kept)]
        assert sorted((tree.log_probs[node] for node in kept), reverse=True) == ranked


def test_a_node_without_its_parent_is_refused() -> None:
    tree = TokenTree(0)
    tree.add(tree.add(0, 1, -1.0), 2, -2.0)
    with pytest.raises(AssertionError, match="without its parent"):
        tree.select([0, 2])
