"""Saved texts are found as far as they are the same, whole in every row, and never for another owner."""

import random
from collections.abc import Callable
from itertools import count

import pytest
import torch

from forerun.core.errors import ConfigError
from forerun.core.shared_length import shared_length
from forerun.model.runner import LEAST_ROWS, Runner
from forerun.model.tree_cache import TreeCache
from forerun.model.warm_texts import BLOCK, WarmTexts
from tests.faults.ordeal import Interrupter
from tests.marks import rest_slow
from tests.tiny import plain_spec, poison_freed_slots, random_weights, tiny_runner

OWNERS = ("", "ann", "bob")
CAPACITY = 8 * BLOCK
AMPLE = 400  # blocks: more than any test fills


def row_of(token_ids: list[int], owner: str) -> float:
    """What a row holds depends on all the text before it; here on whose it is too, which a row of a model could not."""
    return float(hash((owner, *token_ids)) % 2**40)


class Shelf:
    """Saved texts over a cache whose rows can be told from each other."""

    def __init__(self, num_blocks: int) -> None:
        self.cache = TreeCache(plain_spec(), CAPACITY, dtype=torch.float64, device="cpu")
        self.warm = WarmTexts(self.cache, num_blocks * BLOCK * self.cache.bytes_per_slot)
        self.num_blocks = num_blocks

    def save(self, token_ids: list[int], owner: str = "") -> None:
        self.cache.storage_2LSKD[:] = torch.nan
        for slot in range(len(token_ids)):
            self.cache.storage_2LSKD[:, :, slot] = row_of(token_ids[: slot + 1], owner)
        self.warm.save(token_ids, owner)

    def find(self, token_ids: list[int], owner: str = "") -> int:
        """How much is found; all of its rows are right, and no other slot is written."""
        num_found = self.warm.find(token_ids, owner)
        for start in {0, num_found // 2, num_found}:
            self.cache.storage_2LSKD[:] = -1.0
            assert self.warm.restore(token_ids, owner, start) == num_found
            for slot in range(CAPACITY):
                expected = row_of(token_ids[: slot + 1], owner) if start <= slot < num_found else -1.0
                assert (self.cache.storage_2LSKD[:, :, slot] == expected).all(), f"slot {slot} of {num_found}"
        return num_found

    def num_free(self) -> int:
        """Tokens of a fresh text that it has room for, when nothing else is in use."""
        text = [-1 - place for place in range(CAPACITY)]
        self.warm.find([], "")
        self.save(text)
        return self.find(text)


def random_text(rng: random.Random, texts: list[tuple[list[int], str]]) -> list[int]:
    """Mostly one that begins as another one did."""
    start: list[int] = []
    if texts and rng.random() < 0.8:
        start = rng.choice(texts)[0]
        start = start[: rng.choice([len(start), rng.randint(0, len(start))])]
    return [*start, *(rng.randrange(3) for _ in range(rng.choice([0, 1, 5, BLOCK, 3 * BLOCK])))][: CAPACITY - 1]


@pytest.mark.parametrize("seed", range(12))
def test_what_is_found_is_the_longest_beginning_saved_for_the_owner(seed: int) -> None:
    rng = random.Random(seed)
    shelf = Shelf(AMPLE)
    texts: list[tuple[list[int], str]] = []
    for _ in range(20):
        text = random_text(rng, texts)
        owner = rng.choice(OWNERS)
        expected = max([shared_length(text, other) for other, whose in texts if whose == owner], default=0)
        assert shelf.find(text, owner) == expected
        shelf.save(text, owner)
        texts.append((text, owner))
        if rng.random() < 0.05:
            shelf.warm.forget(owner)
            texts = [item for item in texts if item[1] != owner]


@pytest.mark.parametrize("seed", rest_slow(range(12), 4))
def test_where_room_is_short_what_is_found_is_still_right(seed: int) -> None:
    rng = random.Random(seed)
    shelf = Shelf(rng_blocks := 1 + seed % 9)
    texts: list[tuple[list[int], str]] = []
    for _ in range(25):
        text = random_text(rng, texts)
        owner = rng.choice(OWNERS)
        longest = max([shared_length(text, other) for other, whose in texts if whose == owner], default=0)
        assert shelf.find(text, owner) <= longest
        shelf.warm.find([], "")  # nothing else is in use, so that the text has all the room
        shelf.save(text, owner)
        assert shelf.find(text, owner) >= min(len(text), (rng_blocks - 1) * BLOCK)
        texts.append((text, owner))
    assert len(shelf.warm._by_age) <= rng_blocks


def test_the_text_used_least_recently_goes_first_and_its_end_before_its_beginning() -> None:
    first, second = (list(range(start, start + 2 * BLOCK)) for start in (0, 1000))
    shelf = Shelf(4)
    shelf.save(first)
    shelf.save(second)
    assert shelf.find(first) == 2 * BLOCK
    shelf.warm.find([], "")
    shelf.save([5000, *range(BLOCK - 1)])
    assert (shelf.find(first), shelf.find(second)) == (2 * BLOCK, BLOCK)


def test_forgetting_one_owner_makes_its_room_free_and_leaves_the_others() -> None:
    shelf = Shelf(4)
    text = list(range(2 * BLOCK))
    for owner in ("ann", "bob"):
        shelf.warm.find([], "")
        shelf.save(text, owner)
    shelf.warm.forget("ann")
    assert (shelf.find(text, "ann"), shelf.find(text, "bob")) == (0, 2 * BLOCK)
    shelf.warm.find([], "")
    other = [7, *text[1:]]
    shelf.save(other)
    assert (shelf.find(other), shelf.find(text, "bob")) == (2 * BLOCK, 2 * BLOCK)
    shelf.warm.forget()
    assert shelf.find(text, "bob") == 0
    assert shelf.num_free() == 4 * BLOCK


def test_more_than_the_machine_has_is_refused_with_what_to_do() -> None:
    cache = TreeCache(plain_spec(), CAPACITY, dtype=torch.float64, device="cpu")
    with pytest.raises(ConfigError, match=r"no memory for saved texts .* set cache_bytes to less"):
        WarmTexts(cache, 2**60)


def interrupted(work: Callable[[], object], place: int) -> bool:
    return Interrupter(files=("model/warm_texts.py", "model/runner.py", "model/tree_cache.py"), stop_at=place).run(work)


@pytest.mark.parametrize("stride", [17, pytest.param(1, marks=pytest.mark.slow)])
def test_an_interrupt_between_any_two_instructions_changes_no_text_and_loses_no_room(stride: int) -> None:
    start = list(range(BLOCK + 7))
    texts = [[*start, 100 * number, *range(2 * BLOCK)] for number in range(1, 5)]
    for place in count(1, stride):
        rng = random.Random(place)
        shelf = Shelf(9)
        for text in texts[:3]:
            shelf.save(text, rng.choice(OWNERS))

        def work(shelf: Shelf = shelf) -> None:
            shelf.warm.find(texts[1], "")
            shelf.warm.save(texts[3], "ann")
            shelf.warm.restore(texts[1], "", 3)
            shelf.warm.forget("ann")

        for slot in range(len(texts[3])):
            shelf.cache.storage_2LSKD[:, :, slot] = row_of(texts[3][: slot + 1], "ann")
        was_interrupted = interrupted(work, place)
        for text in texts:
            for owner in OWNERS:
                shelf.find(text, owner)
        assert shelf.num_free() == CAPACITY == 8 * BLOCK, "a block was lost"
        if not was_interrupted:
            break
    assert place > 100, "too few places to have looked at anything"


SPEC = plain_spec(vocab_size=7)
WEIGHTS = random_weights(SPEC, torch.Generator().manual_seed(1))


def warm_runner(num_blocks: int = AMPLE) -> Runner:
    num_bytes = num_blocks * BLOCK * tiny_runner(SPEC, WEIGHTS).cache.bytes_per_slot
    runner = tiny_runner(SPEC, WEIGHTS, capacity=CAPACITY, cache_bytes=num_bytes)
    poison_freed_slots(runner)
    return runner


def assert_reads_as_fresh(runner: Runner, fresh: Runner, text: list[int], owner: str) -> int:
    """Bit for bit; how many tokens were known."""
    runner.recall(text, owner)
    num_known = runner.sync(text)
    fresh.sync(())
    fresh.sync(text)
    assert runner.cached_ids == text
    assert runner.cache.committed_len == len(text)
    ours, theirs = (one.cache.storage_2LSKD[:, :, : len(text)] for one in (runner, fresh))
    assert torch.equal(ours, theirs)
    return num_known


@pytest.mark.parametrize("num_blocks", [0, 1, 5, AMPLE])
def test_a_text_that_is_recalled_has_the_rows_of_a_fresh_prefill(num_blocks: int) -> None:
    rng = random.Random(num_blocks)
    runner = warm_runner(num_blocks)
    fresh = tiny_runner(SPEC, WEIGHTS, capacity=CAPACITY)
    texts: list[tuple[list[int], str]] = []
    for _ in range(30):
        text = random_text(rng, texts)
        owner = rng.choice(OWNERS)
        shares = [shared_length(text, other) for other, whose in texts if whose == owner]
        num_known = assert_reads_as_fresh(runner, fresh, text, owner)
        assert num_known <= max(shares, default=0)
        if num_blocks == AMPLE:
            assert num_known >= max(shares, default=0) - LEAST_ROWS
        texts.append((text, owner))


@pytest.mark.parametrize("stride", [31, pytest.param(1, marks=pytest.mark.slow)])
def test_an_interrupt_while_texts_change_places_leaves_every_text_right(stride: int) -> None:
    rng = random.Random(3)
    fresh = tiny_runner(SPEC, WEIGHTS, capacity=CAPACITY)
    start = [rng.randrange(7) for _ in range(BLOCK + 9)]
    texts = [[*start, *(rng.randrange(7) for _ in range(2 * BLOCK))] for _ in range(3)]
    for place in count(1, stride):
        runner = warm_runner(5)
        for text in texts[:2]:
            runner.recall(text, "ann")
            runner.sync(text)

        def work(runner: Runner = runner) -> None:
            runner.recall(texts[0], "ann")
            runner.recall(texts[2], "bob")
            runner.forget("bob")

        was_interrupted = interrupted(work, place)
        for text, owner in zip(texts, ("ann", "bob", "ann"), strict=True):
            assert_reads_as_fresh(runner, fresh, text, owner)
        if not was_interrupted:
            break
