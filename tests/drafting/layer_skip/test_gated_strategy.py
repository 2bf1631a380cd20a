"""What the search for sublayers to skip finds, on emulators whose truth is known, and what it takes into use."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

from forerun.core.sublayers import ATTENTION, MLP, NOTHING, SkipSet, skippable
from forerun.drafting.layer_skip.gated_strategy import GatedStrategy
from forerun.drafting.layer_skip.set_files import NamedSet
from forerun.drafting.layer_skip.speed_model import SpeedModel
from tests.drafting.layer_skip.skip_emulator import (
    CONTEXT,
    NUM_LAYERS,
    Emulator,
    best_speed,
    cnn_dm,
    gsm8k,
    score,
    speed_model,
)
from tests.marks import rest_slow

NUM_SEEDS = 12
STAGES = (100, 200, 400)
EMULATORS = pytest.mark.parametrize("make", rest_slow([cnn_dm, gsm8k], 1))
Make = Callable[[int], Emulator]


class Mark(NamedTuple):
    """Of the set in use: its true chance, what is believed of it, and its speed over the best."""

    chance: float
    believed: float
    speed: float


@cache
def marks(make: Make) -> dict[int, list[Mark]]:
    """After so many evaluations, each seed."""
    found: dict[int, list[Mark]] = {number: [] for number in STAGES}
    for seed in range(NUM_SEEDS):
        emulator = make(seed)
        rng = np.random.default_rng(1000 + seed)
        search = GatedStrategy(NUM_LAYERS, speed_model(), seed=seed)
        for number, some in found.items():
            score(search, emulator, rng, number)
            chance = emulator.chance(search.skipped)
            some.append(Mark(chance, search.chance(), share_of_best(emulator, search.skipped)))
    return found


def share_of_best(emulator: Emulator, skipped: SkipSet) -> float:
    """True speed over the best."""
    return speed_model().speed(emulator.chance(skipped), skipped, CONTEXT) / best_speed(emulator, speed_model())


# What is found.


@EMULATORS
def test_the_speed_comes_near_the_best(make: Make) -> None:
    """What skips less than is best is held back by how well 76 penalties can be known."""
    shares = {number: [mark.speed for mark in some] for number, some in marks(make).items()}
    assert np.mean(shares[200]) > 0.93
    assert np.mean(shares[400]) > 0.97
    assert min(shares[200]) > 0.85


def test_what_it_believes_of_the_set_in_use_is_true() -> None:
    """Not what luck made of it: the best score seen would lie far above."""
    errors = [mark.believed - mark.chance for some in marks(cnn_dm).values() for mark in some]
    assert abs(np.mean(errors)) < 0.015
    assert np.std(errors) < 0.03


# What replaces what.


def search_with_rival(in_use: tuple[int, int]) -> tuple[GatedStrategy, SkipSet]:
    """A search in which two sets alike are known, one of them in use with such a record; and the other one."""
    sets = [frozenset(skippable(NUM_LAYERS)[20:40]), frozenset(skippable(NUM_LAYERS)[40:60])]
    known = [NamedSet(name=str(number), skipped=one) for number, one in enumerate(sets)]
    search = GatedStrategy(NUM_LAYERS, speed_model(), known=known)
    (rival,) = set(sets) - {search.skipped}
    hits, rows = in_use
    search.told(search.skipped, hits, rows)
    return search, rival


def test_no_set_has_what_layers_lack() -> None:
    absent = frozenset((layer, (ATTENTION, MLP)[layer % 2]) for layer in range(NUM_LAYERS))
    machine = speed_model()
    search = GatedStrategy(NUM_LAYERS, replace(machine, costs=replace(machine.costs, absent=absent)))
    proposed = [skipped for _ in range(50) for skipped in search.propose(4, CONTEXT)]
    assert any(proposed)
    assert not any(skipped & absent for skipped in [search.skipped, *proposed])


def test_a_few_lucky_hits_replace_nothing() -> None:
    search, rival = search_with_rival((300, 330))
    search.told(rival, 4, 4)
    search.told(NOTHING, 0, 64)  # time to judge
    assert search.skipped != rival


def test_a_better_set_replaces_the_one_in_use_once_it_was_seen_enough() -> None:
    search, rival = search_with_rival((250, 330))
    search.told(rival, 31, 31)
    search.told(NOTHING, 64, 64)
    assert search.skipped != rival, "31 rows are too few"
    for _ in range(16):
        search.told(rival, 4, 4)
    assert search.skipped == rival


# Whether to draft at all.


def test_drafting_begins_only_where_it_surely_pays() -> None:
    search = GatedStrategy(NUM_LAYERS, speed_model())
    assert not search.is_worth_it(CONTEXT), "nothing is sure as yet"
    search.told(search.skipped, 95, 100)
    assert search.is_worth_it(CONTEXT)


def test_drafting_does_not_begin_where_a_draft_costs_nearly_a_pass() -> None:
    """Skipping saves nothing here, as where the passes wait for something other than weights."""
    machine = speed_model()
    flat = GatedStrategy(NUM_LAYERS, without_savings(machine.costs.whole.step_s(1)))
    for _ in range(20):
        flat.told(flat.skipped, 32, 32)
    assert not flat.is_worth_it(CONTEXT)


def without_savings(whole_s: float) -> SpeedModel:
    machine = speed_model()
    return replace(machine, costs=replace(machine.costs, attention_s=whole_s / 1600, mlp_s=whole_s / 1600))


def test_drafting_goes_on_while_it_is_expected_to_pay_and_then_ends() -> None:
    search = GatedStrategy(NUM_LAYERS, speed_model())
    search.told(search.skipped, 190, 200)
    answers = []
    for _ in range(60):
        search.told(search.skipped, 5, 10)
        answers.append((search.is_worth_it(CONTEXT), search.speed(CONTEXT) > speed_model().plain_speed()))
    assert answers[0] == (True, True)
    assert answers[-1] == (False, False)
    began = GatedStrategy(NUM_LAYERS, speed_model())
    chance = next(chance for chance in np.linspace(0.5, 1, 500) if pays_by(began, chance) > 1.01)
    for _ in range(20):
        began.told(began.skipped, 500 * chance, 500)
    assert not began.is_worth_it(CONTEXT), "it would not begin for one per cent"


def pays_by(search: GatedStrategy, chance: float) -> float:
    return speed_model().speed(chance, search.skipped, CONTEXT) / speed_model().plain_speed()
