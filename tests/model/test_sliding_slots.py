"""What windows have passed is given back, nothing else, and every text is read as if nothing had been."""

import random
from collections.abc import Callable
from itertools import count

import pytest
import torch

from forerun.core.model_spec import WINDOW_MARGIN, WINDOW_STEP
from forerun.core.shared_length import shared_length
from forerun.model.executor import CacheMove
from forerun.model.runner import LEAST_ROWS, Runner
from forerun.model.tree_cache import TreeCache
from forerun.model.warm_texts import BLOCK
from tests.faults.ordeal import Interrupter
from tests.marks import in_turn
from tests.sliding import lose_early
from tests.tiny import plain_spec, poison_freed_slots, random_weights, tiny_runner
from tests.tiny_families import family_spec

WINDOWED = ("mistral", "phi3", "gemma3_text", "gemma4_text", "olmo3")
CAPACITY = 6 * BLOCK
AMPLE = 1 << 24
SPEC = plain_spec(window=5, sliding_layers=(0,), vocab_size=7)
WEIGHTS = random_weights(SPEC, torch.Generator().manual_seed(1), dtype=torch.float32)  # of which kernels are fast


def grown_to(cache: TreeCache, length: int, by: int) -> None:
    """Commit rows until the text has this length."""
    while cache.committed_len < length:
        num_rows = min(by, length - cache.committed_len)
        cache.reserve(num_rows)
        rows = tuple(range(num_rows))
        cache.move(CacheMove(length=cache.committed_len, rows=rows, num_committed=num_rows))


@pytest.mark.parametrize("seed", range(8))
def test_pages_without_a_needed_slot_are_given_back_and_no_needed_slot_is_lost(seed: int) -> None:
    rng = random.Random(seed)
    window = rng.choice([1, 7, 300])
    capacity = rng.randint(3000, 4000)
    num_layers = rng.randint(1, 5)
    sliding = tuple(sorted(rng.sample(range(num_layers), rng.randint(1, num_layers))))
    spec = plain_spec(
        num_layers=num_layers,
        window=window,
        sliding_layers=sliding,
        num_kv_heads=1,
        head_dim=rng.choice([2, 6, 64, 80]),
    )
    cache = TreeCache(spec, capacity, dtype=torch.float32, device="cpu")
    cache.storage_2LSKD.fill_(1.0)
    for length in sorted(rng.sample(range(1, capacity), 6)):
        grown_to(cache, length, rng.choice([1, 7, 256]))
        whole_from = cache.sliding.whole_from
        slot_bytes = cache.bytes_per_slot // (2 * num_layers)
        assert (
            length - window - WINDOW_MARGIN - 2 * WINDOW_STEP
            <= whole_from
            <= max(0, length - window + 1 - WINDOW_MARGIN)
        )
        for layer in range(num_layers):
            rows = cache.storage_2LSKD[:, layer].flatten(2)
            if layer not in sliding:
                assert (rows == 1.0).all()
            assert (rows[:, whole_from:] == 1.0).all()
            num_left = int((rows[:, :whole_from] != 0.0).sum()) * rows.element_size()
            assert layer not in sliding or num_left < 2 * 2 * 4096 or whole_from * slot_bytes < 4096
    cache.truncate(0)
    assert cache.sliding.whole_from == 0


def test_slots_are_given_back_no_sooner_than_the_margin_allows() -> None:
    window = 7
    spec = plain_spec(window=window, sliding_layers=(0,), num_kv_heads=1, head_dim=2)
    first = window - 1 + WINDOW_MARGIN + WINDOW_STEP  # the shortest text behind which rows need one step less
    cache = TreeCache(spec, first + 1, dtype=torch.float32, device="cpu")
    grown_to(cache, first - 1, 256)
    grown_to(cache, first, 1)
    assert cache.sliding.whole_from == 0
    grown_to(cache, first + 1, 1)
    assert cache.sliding.whole_from == WINDOW_STEP


def test_a_text_is_cut_back_within_the_margin_or_to_nothing() -> None:
    cache = TreeCache(SPEC, 4000, dtype=torch.float64, device="cpu")
    grown_to(cache, 3000, 256)
    least = cache.sliding.whole_from + 4
    assert (cache.resumable(least), cache.resumable(least - 1)) == (least, 0)
    assert 3000 - least >= WINDOW_MARGIN
    with pytest.raises(AssertionError, match=f"the windows before token {least - 1} are lost"):
        cache.truncate(least - 1)
    cache.truncate(least)
    cache.truncate(0)
    assert cache.resumable(17) == 17


def random_text(rng: random.Random, texts: list[tuple[list[int], str]], vocab_size: int) -> list[int]:
    """Mostly one that begins as another one did."""
    start: list[int] = []
    if texts and rng.random() < 0.9:
        start = rng.choice(texts)[0]
        start = start[: rng.choice([len(start), rng.randint(0, len(start))])]
    new = [rng.randrange(vocab_size) for _ in range(rng.choice([1, 1, 5, BLOCK, 3 * BLOCK]))]
    return [*start, *new][: CAPACITY - 9]


def assert_goes_on_as_fresh(runner: Runner, fresh: Runner, text: list[int], owner: str = "") -> int:
    """Bit for bit, for the rows that follow; how many tokens were known."""
    runner.recall(text, owner)
    num_known = runner.sync(text)
    fresh.sync(())
    fresh.sync(text)
    new = [token % runner.spec.vocab_size for token in (3, 1, 4)]
    assert runner.cached_ids == text
    assert torch.equal(runner.extend(new, num_logit_rows=3), fresh.extend(new, num_logit_rows=3))
    runner.cut(len(text))
    return num_known


@pytest.mark.parametrize(("family", "steps"), in_turn(WINDOWED, [(0, 1), (3, 1), (8, 7), (40, 16)]))
def test_texts_that_were_cut_back_saved_and_recalled_go_on_as_fresh_ones(
    family: str, steps: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(f"{family} {steps}")
    spec = family_spec(rng, family)
    weights = random_weights(spec, torch.Generator().manual_seed(steps[0]), dtype=torch.float32)
    fresh = tiny_runner(spec, weights, capacity=CAPACITY)
    lose_early(monkeypatch, margin=steps[0], step=steps[1])
    monkeypatch.setattr(fresh.cache.sliding, "_sliding", ())
    num_resumed = 0
    for cache_bytes in (0, 6 * BLOCK * fresh.cache.bytes_per_slot, AMPLE):
        runner = tiny_runner(spec, weights, capacity=CAPACITY, cache_bytes=cache_bytes)
        poison_freed_slots(runner)
        texts: list[tuple[list[int], str]] = []
        for _ in range(20):
            text = random_text(rng, texts, spec.vocab_size)
            owner = rng.choice(["", "ann"])
            known = assert_goes_on_as_fresh(runner, fresh, text, owner)
            shares = [shared_length(text, other) for other, whose in texts if whose == owner]
            assert known <= max([*shares, 0])
            num_resumed += known > 0 and runner.cache.sliding.whole_from > 0
            texts.append((text, owner))
    assert num_resumed > 0, "no text was resumed of which windows had been lost"


def test_a_text_is_cut_back_to_every_length(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(2)
    fresh = tiny_runner(SPEC, WEIGHTS, capacity=CAPACITY)
    lose_early(monkeypatch, margin=20, step=4)
    monkeypatch.setattr(fresh.cache.sliding, "_sliding", ())
    text = [rng.randrange(7) for _ in range(70)]
    runner = tiny_runner(SPEC, WEIGHTS, capacity=CAPACITY)
    for length in range(len(text)):
        runner.sync(())
        assert assert_goes_on_as_fresh(runner, fresh, text) == 0
        known = assert_goes_on_as_fresh(runner, fresh, [*text[:length], (text[length] + 1) % 7])
        assert known == (length if length >= 50 else 0 if length < 47 else known)


def read_in_turn(texts: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens of each text were known, on a runner with room for all."""
    lose_early(monkeypatch, margin=BLOCK, step=8)
    runner = tiny_runner(SPEC, WEIGHTS, capacity=CAPACITY, cache_bytes=AMPLE)
    known = []
    for text in texts:
        runner.recall(text)
        known.append(runner.sync(text[:-1]))
        runner.sync(text)  # the text before a pass says what is given back
    return known


def random_parts(*lengths: int) -> list[list[int]]:
    rng = random.Random(4)
    return [[rng.randrange(7) for _ in range(length)] for length in lengths]


def test_a_prompt_that_texts_share_is_known_as_far_as_it_was_saved_before_they_grew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared, first, second = random_parts(BLOCK + 4, 110, 30)
    grown = [*shared, 1, *first]
    other = [6 - shared[0], *second]
    texts = [shared, other, grown, [*shared, 3, *second], [*grown, 5]]
    assert read_in_turn(texts, monkeypatch) == [0, 0, len(shared), BLOCK, len(grown)]


def test_a_beginning_that_is_read_again_completes_what_was_saved_of_it_and_cuts_nothing_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, other = random_parts(150, 60)
    start = whole[: BLOCK + 8]
    texts = [whole, start, [6 - whole[0], *other], whole, [*start, (whole[len(start)] + 1) % 7], whole]
    assert read_in_turn(texts, monkeypatch) == [0, 0, 0, len(whole) - 1, BLOCK, len(whole) - 1]


def interrupted(work: Callable[[], object], place: int) -> bool:
    names = ("warm_texts", "runner", "tree_cache", "sliding_slots")
    return Interrupter(files=tuple(f"model/{name}.py" for name in names), stop_at=place).run(work)


@pytest.mark.parametrize("stride", [61, pytest.param(1, marks=pytest.mark.slow)])
def test_an_interrupt_while_texts_change_places_leaves_every_text_right(
    stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(3)
    fresh = tiny_runner(SPEC, WEIGHTS, capacity=CAPACITY)
    lose_early(monkeypatch, margin=LEAST_ROWS, step=8)
    monkeypatch.setattr(fresh.cache.sliding, "_sliding", ())
    start = [rng.randrange(7) for _ in range(BLOCK + 9)]
    texts = [[*start, *(rng.randrange(7) for _ in range(2 * BLOCK))] for _ in range(3)]
    for place in count(1, stride):
        runner = tiny_runner(SPEC, WEIGHTS, capacity=CAPACITY, cache_bytes=5 * BLOCK * fresh.cache.bytes_per_slot)
        for text in (texts[0][:50], *texts[:2]):
            runner.recall(text, "ann")
            runner.sync(text)

        def work(runner: Runner = runner) -> None:
            runner.recall(texts[0], "ann")
            runner.sync([*texts[0], 1])
            runner.recall(texts[2], "bob")
            runner.sync(texts[2])
            runner.forget("bob")

        was_interrupted = interrupted(work, place)
        for text, owner in zip(texts, ("ann", "bob", "ann"), strict=True):
            assert_goes_on_as_fresh(runner, fresh, text, owner)
        if not was_interrupted:
            break
    assert place > 100, "too few places to have looked at anything"
