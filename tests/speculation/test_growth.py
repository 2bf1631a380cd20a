"""Best-first growth against the full tree, grown by brute force."""

import math
import random
from collections.abc import Callable, Iterator
from itertools import product

import pytest

from forerun.speculation.growth import BestFirstGrowth

Path = tuple[int, ...]
Law = Callable[[Path], list[float]]  # log-probabilities of the next token after a path

NUM_CASES = 50


def random_law(seed: int, vocab_size: int) -> Law:
    """A different law after every path; never equal likelihoods."""

    def law(path: Path) -> list[float]:
        rng = random.Random(f"{seed} {path}")
        weights = [rng.random() ** 3 + 1e-6 for _ in range(vocab_size)]
        return [math.log(weight / sum(weights)) for weight in weights]

    return law


def ranked(law: Law, path: Path) -> tuple[list[int], list[float]]:
    """All children of a path, likeliest first."""
    values = law(path)
    order = sorted(range(len(values)), key=lambda token: -values[token])
    return order, [values[token] for token in order]


def grow(
    law: Law, *, verify_width: int, draft_width: int, depth: int, min_confidence: float = 0.0
) -> tuple[BestFirstGrowth, list[list[int]]]:
    """Run the growth as a drafter does; return it with the batches it asked for."""
    growth = BestFirstGrowth(0, horizon=verify_width, draft_width=draft_width, min_confidence=min_confidence)
    batches: list[list[int]] = []
    while len(batches) < depth and (batch := growth.next_batch()):
        batches.append(batch)
        for node in batch:
            growth.add_children(node, *ranked(law, tuple(growth.tree.path_tokens(node))))
    return growth, batches


def cut_paths(growth: BestFirstGrowth, width: int) -> dict[Path, float]:
    tree = growth.tree
    return {tuple(tree.path_tokens(node)): tree.log_probs[node] for node in growth.tree.best(width)}


def all_paths(law: Law, vocab_size: int, max_depth: int) -> Iterator[tuple[Path, float]]:
    """Every path of at most `max_depth` tokens with its log-probability."""
    for depth in range(max_depth + 1):
        for path in product(range(vocab_size), repeat=depth):
            yield path, sum(law(path[:place])[token] for place, token in enumerate(path))


@pytest.mark.parametrize("verify_width", [1, 2, 3, 5, 8])
def test_the_cut_is_the_likeliest_nodes_of_the_full_tree(verify_width: int) -> None:
    """A node among the w likeliest lies at depth w - 1 at most, since its ancestors are likelier."""
    vocab_size = 3
    for seed in range(8):
        law = random_law(seed, vocab_size)
        best = sorted(all_paths(law, vocab_size, verify_width - 1), key=lambda entry: -entry[1])[:verify_width]
        for draft_width in (1, 2, 64):
            growth, _ = grow(law, verify_width=verify_width, draft_width=draft_width, depth=100)
            assert cut_paths(growth, verify_width) == pytest.approx(dict(best))


@pytest.mark.parametrize("seed", range(NUM_CASES))
def test_growth_keeps_its_books(seed: int) -> None:
    rng = random.Random(seed)
    verify_width = rng.randint(1, 12)
    draft_width = rng.randint(1, 6)
    depth = rng.randint(1, 6)
    law = random_law(seed, rng.randint(2, 7))
    growth, batches = grow(law, verify_width=verify_width, draft_width=draft_width, depth=depth)
    tree = growth.tree
    cut = growth.tree.best(verify_width)
    expanded = [node for batch in batches for node in batch]
    assert len(batches) <= depth
    assert all(1 <= len(batch) <= draft_width for batch in batches)
    assert len(set(expanded)) == len(expanded), "a node was expanded twice"
    assert all(tree.parents[node] in expanded for node in range(1, len(tree)))
    assert all(parent < node for node, parent in enumerate(tree.parents))
    assert all(tree.log_probs[node] <= tree.log_probs[tree.parents[node]] for node in range(1, len(tree)))
    siblings = list(zip(tree.parents, tree.token_ids, strict=True))
    assert len(set(siblings)) == len(siblings), "two siblings have the same token"
    assert cut == sorted(set(cut))
    assert cut[0] == 0
    assert len(cut) == min(verify_width, len(tree))
    assert all(tree.parents[node] in cut for node in cut[1:])
    assert growth.chances() == sorted((math.exp(tree.log_probs[node]) for node in cut), reverse=True)


@pytest.mark.parametrize("seed", range(20))
def test_a_tree_that_outlives_its_cuts_keeps_its_books(seed: int) -> None:
    """Grow, re-root anywhere, grow on: the subtree is what it was, and the frontier is exactly what is unexpanded."""
    rng = random.Random(seed)
    law = random_law(seed, rng.randint(2, 6))
    growth = BestFirstGrowth(0, horizon=rng.choice([4, 16, 64]), draft_width=rng.randint(1, 5))
    expanded: set[int] = set()
    prefix: Path = ()
    for _ in range(12):
        for _ in range(rng.randint(0, 3)):
            for node in growth.next_batch():
                assert node not in expanded, "a node was expanded twice"
                expanded.add(node)
                growth.add_children(node, *ranked(law, (*prefix, *growth.tree.path_tokens(node))))
        before = growth.tree
        node = rng.randrange(len(growth.tree))
        places = growth.reroot(node)
        after = growth.tree
        base = before.path_tokens(node)
        prefix = (*prefix, *base)
        assert places[node] == 0
        for old, new in places.items():
            assert before.path_tokens(old) == [*base, *after.path_tokens(new)]
            assert after.log_probs[new] == pytest.approx(before.log_probs[old] - before.log_probs[node])
        below = {old for old in range(len(before)) if before.path_tokens(old)[: len(base)] == base}
        assert set(places) == below
        expanded = {places[old] for old in expanded if old in places}
        assert all(after.parents[child] in expanded for child in range(1, len(after)))


@pytest.mark.parametrize("seed", range(15))
def test_behind_a_guess_below_the_confidence_nothing_grows_and_the_guess_itself_is_kept(seed: int) -> None:
    rng = random.Random(seed)
    law = random_law(seed, rng.randint(2, 5))
    min_confidence = rng.choice([0.2, 0.4, 0.6])
    shape = {"verify_width": rng.randint(2, 12), "draft_width": rng.randint(1, 4), "depth": rng.randint(1, 6)}
    growth, batches = grow(law, **shape, min_confidence=min_confidence)
    tree = growth.tree
    expanded = {node for batch in batches for node in batch}
    doubted = []
    for node in range(1, len(tree)):
        *before, token = tree.path_tokens(node)
        if law(tuple(before))[token] < math.log(min_confidence):
            doubted.append(node)
    assert not expanded & set(doubted)
    worst_kept = min(tree.log_probs[node] for node in growth.tree.best(shape["verify_width"]))
    waiting = [tree.log_probs[node] for node in range(len(tree)) if node not in {*expanded, *doubted}]
    assert len(batches) == shape["depth"] or max(waiting, default=-math.inf) <= worst_kept, "a sure guess was left"
    assert tree.path_tokens(1) == ranked(law, ())[0][:1], "the likeliest guess is in the tree, however unsure"


def test_a_guess_at_the_confidence_is_expanded_and_one_below_is_not() -> None:
    for chance, is_expanded in ((0.5, True), (0.499, False)):
        growth = BestFirstGrowth(0, horizon=8, draft_width=4, min_confidence=0.5)
        growth.add_children(growth.next_batch()[0], [3, 4], [math.log(chance), math.log(0.25)])
        assert growth.tree.token_ids == [0, 3, 4]
        assert growth.next_batch() == ([1] if is_expanded else [])
