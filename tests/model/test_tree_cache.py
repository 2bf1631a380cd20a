"""The cache after any sequence of commits holds what a fresh prefill of the same text computes."""

import random

import pytest
import torch

from forerun.model.executor import CacheMove, ForwardInput
from forerun.model.runner import Runner
from forerun.model.tree_cache import TreeCache
from forerun.speculation.tree import TokenTree, ancestry_matrix
from tests.tiny import plain_spec, poison_freed_slots, random_weights, tiny_runner, tiny_spec

MAX_ERROR = 1e-12


def random_tree(rng: random.Random, root_token: int, vocab_size: int, max_nodes: int) -> TokenTree:
    """Mostly deep trees, so that long paths lie among many siblings."""
    tree = TokenTree(root_token)
    for _ in range(rng.randrange(max_nodes)):
        parent = rng.choice([len(tree) - 1, rng.randrange(len(tree))])
        token_id = rng.randrange(vocab_size)
        if token_id not in tree.children(parent):
            tree.add(parent, token_id, 0.0)
    return tree


def path_to(tree: TokenTree, node: int) -> list[int]:
    path = [node]
    while tree.parents[path[-1]] >= 0:
        path.append(tree.parents[path[-1]])
    return path[::-1]


def run_tree(runner: Runner, tree: TokenTree) -> torch.Tensor:
    prefix_len = runner.cache.committed_len
    return runner.forward(
        ForwardInput(
            token_ids=tree.token_ids,
            positions=[prefix_len + depth for depth in tree.depths],
            first_slot=runner.cache.reserve(len(tree)),
            prefix_len=prefix_len,
            ancestry=ancestry_matrix(tree.parents),
            num_logit_rows=len(tree),
        )
    ).logits


def assert_holds_a_fresh_prefill(runner: Runner, fresh: Runner) -> None:
    """Keys and values of the committed text, layer by layer, against one causal pass."""
    length = runner.cache.committed_len
    assert length == len(runner.cached_ids)
    fresh.sync(())
    fresh.sync(runner.cached_ids)
    for ours, theirs in (
        (runner.cache.keys_LSKD, fresh.cache.keys_LSKD),
        (runner.cache.values_LSKD, fresh.cache.values_LSKD),
    ):
        torch.testing.assert_close(ours[:, :length], theirs[:, :length], atol=MAX_ERROR, rtol=0)


@pytest.mark.parametrize("exactness", ["exact", "fast"])
@pytest.mark.parametrize("seed", range(15))
def test_any_sequence_of_commits_leaves_a_fresh_prefill(seed: int, exactness: str) -> None:
    rng = random.Random(seed)
    spec = tiny_spec(rng)
    weights = random_weights(spec, torch.Generator().manual_seed(seed))
    runner, fresh = (tiny_runner(spec, weights, exactness=exactness) for _ in range(2))  # type: ignore[arg-type]
    poison_freed_slots(runner)
    for _ in range(8):
        match rng.choice(["sync", "round", "round", "round"]):
            case "sync":
                kept = runner.cached_ids[: rng.randint(0, len(runner.cached_ids))]
                runner.sync([*kept, *(rng.randrange(spec.vocab_size) for _ in range(rng.randint(0, 5)))])
            case _:
                tree = random_tree(rng, rng.randrange(spec.vocab_size), spec.vocab_size, 12)
                assert run_tree(runner, tree).isfinite().all()
                path = path_to(tree, rng.randrange(len(tree)))
                runner.commit(path, [tree.token_ids[node] for node in path])
        assert_holds_a_fresh_prefill(runner, fresh)


@pytest.mark.parametrize("exactness", ["exact", "fast"])
@pytest.mark.parametrize("seed", range(8))
def test_every_live_node_holds_what_its_own_path_computes(seed: int, exactness: str) -> None:
    """Also after a commit that keeps the subtree below the accepted path alive."""
    rng = random.Random(seed)
    spec = tiny_spec(rng, vocab_size=12)
    weights = random_weights(spec, torch.Generator().manual_seed(seed))
    runner, fresh = (tiny_runner(spec, weights, exactness=exactness) for _ in range(2))  # type: ignore[arg-type]
    poison_freed_slots(runner)
    prompt = [rng.randrange(12) for _ in range(5)]
    runner.sync(prompt)
    tree = random_tree(rng, 3, 12, 30)
    run_tree(runner, tree)
    accepted = path_to(tree, rng.randrange(len(tree)))
    below, places = tree.subtree(accepted[-1])
    live = list(places)[1:]
    runner.keep([*accepted, *live], [tree.token_ids[node] for node in accepted])
    text = [*prompt, *(tree.token_ids[node] for node in accepted)]
    assert runner.cache.committed_len == len(text)
    assert runner.cache.num_tree == len(live)
    for place in range(1, len(below)):
        path = below.path_tokens(place)
        fresh.sync(())
        fresh.sync([*text, *path])
        slot = len(text) + place - 1
        for name in ("keys_LSKD", "values_LSKD"):
            ours, theirs = (getattr(cache, name) for cache in (runner.cache, fresh.cache))
            torch.testing.assert_close(ours[:, slot], theirs[:, len(text) + len(path) - 1], atol=MAX_ERROR, rtol=0)


@pytest.mark.parametrize("seed", range(30))
def test_moves_with_overlapping_ranges_copy_what_was_there_before(seed: int) -> None:
    """Kept rows slide to the left over slots that other kept rows still come from."""
    rng = random.Random(seed)
    num_rows = rng.randint(2, 24)
    length = rng.randint(0, 6)
    cache = TreeCache(plain_spec(), 40, dtype=torch.float64, device="cpu")
    cache.reserve(length)
    cache.move(CacheMove(length=0, rows=tuple(range(length)), num_committed=length))
    cache.reserve(num_rows)
    for slot in range(40):
        cache.keys_LSKD[:, slot] = slot
        cache.values_LSKD[:, slot] = -slot
    rows = sorted(rng.sample(range(num_rows), rng.randint(1, num_rows)))
    if seed % 3 == 0:
        rng.shuffle(rows)
    num_committed = rng.randint(0, len(rows))
    cache.move(CacheMove(length=length, rows=tuple(rows), num_committed=num_committed))
    assert (cache.committed_len, cache.num_tree) == (length + num_committed, len(rows) - num_committed)
    expected = [*range(length), *(length + row for row in rows)]
    for place, slot in enumerate(expected):
        assert (cache.keys_LSKD[:, place] == slot).all()
        assert (cache.values_LSKD[:, place] == -slot).all()


def small_cache() -> TreeCache:
    return TreeCache(plain_spec(), 8, dtype=torch.float64, device="cpu")


def test_a_full_cache_refuses_a_row_more_and_stays_as_it_was() -> None:
    slots = small_cache()
    assert slots.reserve(6) == 0
    slots.move(CacheMove(length=0, rows=(0, 3), num_committed=2))
    assert (slots.committed_len, slots.num_tree, slots.end) == (2, 0, 2)
    with pytest.raises(AssertionError, match="exceed the 8 slots"):
        slots.reserve(7)
    assert slots.end == 2, "a refused reservation changed the cache"


@pytest.mark.parametrize("rows", [[6], [-1], [1, 1]])
def test_rows_that_are_not_there_or_twice_there_are_refused(rows: list[int]) -> None:
    slots = small_cache()
    slots.reserve(6)
    with pytest.raises(AssertionError, match="rows"):
        slots.move(CacheMove(length=0, rows=tuple(rows)))


@pytest.mark.parametrize("length", [-1, 4])
def test_a_text_is_cut_to_a_length_it_has(length: int) -> None:
    slots = small_cache()
    slots.reserve(3)
    slots.move(CacheMove(length=0, rows=(0, 1, 2), num_committed=3))
    with pytest.raises(AssertionError, match="length"):
        slots.truncate(length)
