"""The search: it finds what is fastest, and only among what the profile knows."""

import pytest

from forerun.core.errors import ConfigError
from forerun_lab.planner.plan import search, splits_of
from forerun_lab.planner.profile import Profile
from forerun_lab.planner.synthetic import SyntheticPair
from tests.planner.paces import flat

TRACES = SyntheticPair(num_answers=2, num_tokens=32).traces()


def profile_of(target_ms: dict[int, float], draft_ms: dict[int, float]) -> Profile:
    return Profile(
        source="stated",
        unit="GPU",
        target={units: flat(ms) for units, ms in target_ms.items()},
        draft={units: flat(ms) for units, ms in draft_ms.items()},
    )


def test_every_split_is_looked_at_odd_ones_too() -> None:
    profile = profile_of(dict.fromkeys(range(1, 6), 10.0), dict.fromkeys(range(1, 6), 1.0))
    names = [split.name for split in splits_of(profile, 5)]
    assert names == ["5 shared", "4+1", "3+2", "2+3", "1+4"]


def test_only_splits_with_known_times_are_looked_at() -> None:
    profile = profile_of({2: 10.0, 4: 6.0}, {2: 1.0})
    assert [split.name for split in splits_of(profile, 4)] == ["4 shared", "2+2"]
    with pytest.raises(ConfigError, match="cannot be divided"):
        splits_of(profile, 3)
    with pytest.raises(ConfigError, match="no times of a draft"):
        splits_of(profile_of({2: 1.0}, {}), 2)


def test_the_plans_come_fastest_first_with_plain_decoding_among_them() -> None:
    calls: list[tuple[int, int]] = []
    profile = profile_of({1: 20.0, 2: 11.0}, {1: 2.0, 2: 2.0})
    plans = search(profile, TRACES, on_plan=lambda done, total: calls.append((done, total)))
    speeds = [plan.outcome.tokens_per_s for plan in plans]
    assert speeds == sorted(speeds, reverse=True)
    assert {plan.kind for plan in plans} == {"serial", "parallel", "plain"}
    assert next(plan for plan in plans if plan.kind == "plain").outcome.round_s == pytest.approx(11e-3)
    assert [done for done, _ in calls] == list(range(1, len(calls) + 1))
    assert all(done <= total for done, total in calls)


def test_a_target_that_loses_nothing_by_sharing_is_drafted_for_in_parallel() -> None:
    plans = search(profile_of({1: 10.0, 2: 10.0}, {1: 3.0, 2: 3.0}), TRACES)
    assert plans[0].kind == "parallel"


def test_a_target_that_needs_all_units_is_drafted_for_in_turn() -> None:
    plans = search(profile_of({1: 20.0, 2: 10.0}, {1: 1.0, 2: 0.5}), TRACES)
    assert plans[0].kind == "serial"
