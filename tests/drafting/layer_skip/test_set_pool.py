"""A few skip sets and what they were seen to be worth."""

import numpy as np
import pytest

from forerun.core.sublayers import SkipSet
from forerun.drafting.layer_skip.set_files import NamedSet
from forerun.drafting.layer_skip.set_pool import POOL_SIZE, SetPool
from forerun.drafting.layer_skip.skip_penalties import PenaltyModel
from tests.drafting.layer_skip.estimates import estimate
from tests.drafting.layer_skip.skip_emulator import NUM_LAYERS, random_set, speed_model

CONTEXT = 100


def named(number: int, num_hits: float = 0.0, num_rows: float = 0.0) -> NamedSet:
    skipped = random_set(np.random.default_rng(number), 30)
    return NamedSet(name=str(number), skipped=skipped, num_hits=num_hits, num_rows=num_rows)


def make_pool(first: NamedSet | None = None) -> SetPool:
    pool = SetPool(PenaltyModel(NUM_LAYERS), speed_model(), first or named(0))
    pool.refresh()
    return pool


def names(pool: SetPool) -> set[str]:
    return {member.name for member in pool}


def test_unseen_a_set_is_worth_what_the_model_thinks_and_seen_what_was_seen() -> None:
    model = PenaltyModel(NUM_LAYERS)
    pool = SetPool(model, speed_model(), named(0))
    pool.refresh()
    member = pool.in_use
    assert member.chance() == pytest.approx(estimate(model, member.skipped).chance, abs=0.03)
    deviations = [member.deviation(member.chance())]
    for _ in range(20):
        member.told(19, 20)
        deviations.append(member.deviation(member.chance()))
    assert member.chance() == pytest.approx(0.95, abs=0.02)
    assert deviations == sorted(deviations, reverse=True)


def test_the_least_valuable_leaves_and_the_incumbent_never() -> None:
    pool = make_pool(named(0, 10, 400))
    for number in range(1, POOL_SIZE):
        pool.add(named(number, 40 * number, 400), CONTEXT)
    pool.refresh()
    assert pool.ranked(CONTEXT, 1.0)[-1] is pool.in_use
    pool.add(named(50, 390, 400), CONTEXT)
    assert len(list(pool)) == POOL_SIZE
    assert names(pool) == {"0", *map(str, range(2, POOL_SIZE)), "50"}


def test_what_is_known_begins_with_the_set_in_use_and_makes_the_same_pool_again() -> None:
    pool = make_pool(named(0, 1, 2))
    for number in range(1, 5):
        pool.add(named(number, number, 10), CONTEXT)
    pool.in_use = pool.add(named(3), CONTEXT)
    known = pool.known()
    assert known[0] == named(3, 3, 10)
    again = make_pool(known[0])
    for one in known[1:]:
        again.add(one, CONTEXT)
    assert again.known() == known
    sets: list[SkipSet] = [one.skipped for one in known]
    assert len(set(sets)) == 5
