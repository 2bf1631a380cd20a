"""The search for sublayers to skip over time: settled, another text, a later session; and how it goes about it."""

import random
import time

import numpy as np
import pytest

from forerun.core.sublayers import ATTENTION, MLP, SkipSet, every_other_layer, skippable
from forerun.drafting.layer_skip.named_set import NamedSet
from forerun.drafting.layer_skip.set_search import SetSearch
from forerun.drafting.layer_skip.settings import TUNED
from forerun.drafting.layer_skip.stopping_rule import StoppingRule
from tests.drafting.layer_skip.skip_emulator import (
    CONTEXT,
    NUM_LAYERS,
    Emulator,
    best_speed,
    cnn_dm,
    random_set,
    score,
    speed_model,
)

OTHER_HARM = frozenset((layer, kind) for layer in range(17, 23) for kind in (ATTENTION, MLP))


def searched(seed: int, until: int) -> tuple[SetSearch, Emulator]:
    emulator, search = cnn_dm(seed), SetSearch(NUM_LAYERS, speed_model(), seed=seed)
    score(search, emulator, np.random.default_rng(1000 + seed), until)
    return search, emulator


# Open, settled, open again.


def test_it_settles_and_then_wants_few_evaluations() -> None:
    num_settled = 0
    for seed in range(3):
        search, _ = searched(seed, 600)
        assert search.num_reopened == 0, "the text has not changed"
        num_settled += not search.is_open
        assert search.share == pytest.approx(1.0 if search.is_open else 0.15)
    assert num_settled >= 2


def test_a_choice_settles_when_nothing_gains_and_in_any_case_at_last() -> None:
    stopping = StoppingRule()
    stopping.change(60, 1.5)
    assert not stopping.settles(60 + TUNED.stable - 1)
    stopping.change(100, 1.001)
    assert stopping.settles(60 + TUNED.stable)
    assert not stopping.settles(60 + TUNED.stable + 1), "it did so before"
    stopping.reopen(2000)
    for number in range(2000, 2000 + TUNED.longest, 50):
        stopping.change(number, 1.5)
        assert not stopping.settles(number)
    assert stopping.settles(2000 + TUNED.longest)


def one_round(search: SetSearch, emulator: Emulator, rng: np.random.Generator) -> None:
    """As in an engine: three tokens are drafted, and four candidates scored at four rows if the search wants it."""
    search.record(search.skipped, emulator.score(search.skipped, 3, rng), 3, is_draft=True)
    if rng.random() < search.share:
        for skipped in search.candidates(4, CONTEXT):
            search.record(skipped, emulator.score(skipped, 4, rng), 4)


def speed_in_use(search: SetSearch, emulator: Emulator) -> float:
    return speed_model().speed(emulator.chance(search.skipped), search.skipped, CONTEXT)


def settle(search: SetSearch, emulator: Emulator, rng: np.random.Generator) -> None:
    for number in range(2000):
        one_round(search, emulator, rng)
        if number >= 400 and not search.is_open:
            return
    raise AssertionError("it never settles")


def switch(search: SetSearch, emulator: Emulator, rng: np.random.Generator, enough: float) -> tuple[int, int]:
    """Rounds after a switch to another text until the search opens again, and until it is as fast as is enough."""
    assert not search.is_open
    assert speed_in_use(search, emulator) < enough, "the switch hurts"
    reopened = 0
    for number in range(1, 1000):
        one_round(search, emulator, rng)
        if search.is_open and not reopened:
            reopened = number
        if reopened and speed_in_use(search, emulator) >= enough:
            return reopened, number
    raise AssertionError("it never recovers")


def test_another_text_opens_the_search_again_and_an_old_one_is_known_again() -> None:
    """Harm lies in the middle layers there and in the first ones here; nothing says that the text has changed."""
    reopened, forth, back = [], [], []
    for seed in (0, 5, 6):
        here, there, rng = cnn_dm(seed), cnn_dm(seed + 50, OTHER_HARM), np.random.default_rng(seed)
        search = SetSearch(NUM_LAYERS, speed_model(), seed=seed)
        settle(search, here, rng)
        enough = 0.9 * speed_in_use(search, here)
        for emulator, took in ((there, forth), (here, back)):
            opened, recovered = switch(search, emulator, rng, enough)
            reopened.append(opened)
            took.append(recovered)
            if emulator is there:
                settle(search, there, rng)
        assert search.num_reopened >= 2
    assert max(reopened) < 60
    assert max(forth) < 600
    assert max(back) < 300
    assert 1.5 * sum(back) < sum(forth)


def test_a_request_begins_with_the_best_of_the_pool() -> None:
    search, emulator = searched(1, 400)
    settle(search, emulator, np.random.default_rng(1))
    settled = search.share
    search.begin_request()
    assert (settled, search.share) == (0.15, 1.0)
    first = search.candidates(4, CONTEXT)
    assert first[0] == search.skipped
    assert set(first) <= {named.skipped for named in search.known()}
    rng = np.random.default_rng(0)
    for _ in range(4):
        for skipped in search.candidates(2, CONTEXT):
            search.record(skipped, emulator.score(skipped, 4, rng), 4)
    assert search.share == settled


# What it hands on.


def test_a_later_search_begins_where_an_earlier_one_ended() -> None:
    earlier, emulator = searched(5, 200)
    known = earlier.known()
    assert known[0].skipped == earlier.skipped
    assert len(known) <= TUNED.pool_size
    later = SetSearch(NUM_LAYERS, speed_model(), known=known)
    assert speed_model().speed(emulator.chance(later.skipped), later.skipped, CONTEXT) > 0.9 * best_speed(
        emulator, speed_model()
    )
    assert later.is_worth_it(CONTEXT)
    assert later.num_evaluations == 0


def test_a_set_of_which_nothing_but_its_name_is_known_may_begin() -> None:
    given = NamedSet(name="given", skipped=random_set(np.random.default_rng(0), 20))
    assert SetSearch(NUM_LAYERS, speed_model(), known=[given]).skipped == given.skipped


# How it does it.


def test_it_neither_reads_nor_moves_any_other_generator() -> None:
    runs = []
    for seed in (1, 2):
        np.random.seed(seed)
        random.seed(seed)
        before = (np.random.get_state()[1].tolist(), random.getstate())
        search, _ = searched(7, 30)
        assert (np.random.get_state()[1].tolist(), random.getstate()) == before
        runs.append((search.known(), search.candidates(8, CONTEXT)))
    assert runs[0] == runs[1]


def test_another_seed_tries_other_sets() -> None:
    tried: list[list[SkipSet]] = []
    for seed in (1, 2):
        search = SetSearch(NUM_LAYERS, speed_model(), seed=seed)
        search.record(search.skipped, 32, 32)
        search.record(every_other_layer(NUM_LAYERS), 10, 32)
        tried.append(search.candidates(8, CONTEXT))
    assert tried[0] != tried[1]


@pytest.mark.parametrize("num_layers", [3, 4, 6])
def test_small_models_are_searched_too(num_layers: int) -> None:
    search, rng = SetSearch(num_layers, speed_model(num_layers)), np.random.default_rng(0)
    for _ in range(200):
        candidates = search.candidates(8, CONTEXT)
        assert len(candidates) == len(set(candidates)) <= 8
        for skipped in candidates:
            search.record(skipped, int(rng.binomial(4, 0.9 ** len(skipped))), 4)
    assert set(search.skipped) <= set(skippable(num_layers))
    assert search.chance() == pytest.approx(0.9 ** len(search.skipped), abs=0.1)


def test_nothing_asked_and_nothing_told_changes_nothing() -> None:
    search, _ = searched(8, 20)
    before = (search.chance(), search.known())
    assert search.candidates(0, CONTEXT) == []
    search.record(search.skipped, 0, 0)
    assert (search.chance(), search.known()) == before


def test_a_proposal_is_quick_with_eighty_layers() -> None:
    search, rng = SetSearch(80, speed_model(80)), np.random.default_rng(0)
    proposals, records = [], []
    for _ in range(60):
        began = time.perf_counter()
        candidates = search.candidates(4, CONTEXT)
        proposals.append((time.perf_counter() - began) / 4)
        for skipped in candidates:
            began = time.perf_counter()
            search.record(skipped, int(rng.binomial(4, 0.8)), 4)
            records.append(time.perf_counter() - began)
    assert sorted(proposals)[30] < 1e-3, "60 us on a quiet core"
    assert sorted(records)[120] < 4e-4, "35 us"
