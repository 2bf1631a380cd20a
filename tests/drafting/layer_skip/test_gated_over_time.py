"""The search for sublayers to skip over time: settled, another text, a later session; and how it goes about it."""

import random
from collections.abc import Iterator

import numpy as np
import pytest

from forerun.core.sublayers import ATTENTION, MLP, skippable
from forerun.drafting.layer_skip.gated_strategy import STABLE, GatedStrategy
from forerun.drafting.layer_skip.set_files import NamedSet
from tests.drafting.layer_skip.skip_emulator import CONTEXT, NUM_LAYERS, Emulator, cnn_dm, score, speed_model

OTHER_HARM = frozenset((layer, kind) for layer in range(17, 23) for kind in (ATTENTION, MLP))


def searched(seed: int, until: int) -> tuple[GatedStrategy, Emulator]:
    emulator = cnn_dm(seed)
    search = GatedStrategy(NUM_LAYERS, speed_model(), seed=seed)
    score(search, emulator, np.random.default_rng(1000 + seed), until)
    return search, emulator


# Open, settled, open again.


def num_scored_until_closed(search: GatedStrategy, evaluations: Iterator[None]) -> int:
    """Evaluations until the search settles."""
    while search.is_searching:
        next(evaluations)
        assert search.num_scored < 500, "it never settles"
    return search.num_scored


def rivals() -> GatedStrategy:
    """A search that knows two sets alike."""
    sets = [frozenset(skippable(NUM_LAYERS)[20:40]), frozenset(skippable(NUM_LAYERS)[40:60])]
    return GatedStrategy(NUM_LAYERS, speed_model(), known=[NamedSet(name="", skipped=one) for one in sets])


def evaluate(search: GatedStrategy, gain_after: int) -> Iterator[None]:
    """One set after the other is scored, until so many evaluations both alike, and then the other one far better."""
    sets = [named.skipped for named in search.known()][:2]
    while True:
        for number, skipped in enumerate(sets):
            is_better = number == 1 and search.num_scored >= gain_after
            search.told(skipped, 32 if is_better else 24, 32)
            yield


def test_a_search_settles_when_nothing_has_gained_for_long() -> None:
    idle = rivals()
    gaining = rivals()
    assert num_scored_until_closed(idle, evaluate(idle, 1000)) == STABLE
    began = gaining.skipped
    assert STABLE + 40 < num_scored_until_closed(gaining, evaluate(gaining, 40)) < STABLE + 80
    assert gaining.skipped != began


def one_round(search: GatedStrategy, emulator: Emulator, rng: np.random.Generator) -> None:
    """As in an engine: three tokens are drafted, and four candidates scored at four rows if the search wants it."""
    search.told(search.skipped, emulator.score(search.skipped, 3, rng), 3, is_draft=True)
    if rng.random() < search.share:
        for skipped in search.propose(4, CONTEXT):
            search.told(skipped, emulator.score(skipped, 4, rng), 4)


def speed_in_use(search: GatedStrategy, emulator: Emulator) -> float:
    return speed_model().speed(emulator.chance(search.skipped), search.skipped, CONTEXT)


def settle(search: GatedStrategy, emulator: Emulator, rng: np.random.Generator) -> None:
    for number in range(2000):
        one_round(search, emulator, rng)
        if number >= 400 and not search.is_searching:
            return
    raise AssertionError("it never settles")


def switch(search: GatedStrategy, emulator: Emulator, rng: np.random.Generator, enough: float) -> tuple[int, int]:
    """Rounds after a switch to another text until the search opens again, and until it is as fast as is enough."""
    assert not search.is_searching
    assert speed_in_use(search, emulator) < enough, "the switch hurts"
    reopened = 0
    for number in range(1, 1000):
        one_round(search, emulator, rng)
        if search.is_searching and not reopened:
            reopened = number
        if reopened and speed_in_use(search, emulator) >= enough:
            return reopened, number
    raise AssertionError("it never recovers")


@pytest.mark.slow
def test_another_text_opens_the_search_again_and_an_old_one_is_known_again() -> None:
    """Harm lies in the middle layers there and in the first ones here; nothing says that the text has changed."""
    reopened = []
    forth = []
    back = []
    for seed in (0, 5):
        here = cnn_dm(seed)
        there = cnn_dm(seed + 50, OTHER_HARM)
        rng = np.random.default_rng(seed)
        search = GatedStrategy(NUM_LAYERS, speed_model(), seed=seed)
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


# How it does it.


def test_it_neither_reads_nor_moves_any_other_generator() -> None:
    runs = []
    for seed in (1, 2):
        np.random.seed(seed)
        random.seed(seed)
        before = (np.random.get_state()[1].tolist(), random.getstate())
        search, _ = searched(7, 30)
        assert (np.random.get_state()[1].tolist(), random.getstate()) == before
        runs.append((search.known(), search.propose(8, CONTEXT)))
    assert runs[0] == runs[1]
