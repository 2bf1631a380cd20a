"""The papers' experiments as data: whole, playable, and with the published figures."""

from collections.abc import Sequence

import pytest

from forerun.core.drafter_config import BUILTIN_DRAFT, NoDrafter, Parallel
from forerun.core.pace import read_device
from forerun_lab.papers import swift, swiftspec
from forerun_lab.papers.experiments import Contest
from forerun_lab.planner.profile import Profile
from forerun_lab.planner.roofline import machine_named
from forerun_lab.planner.swiftspec import PAIRS, READINGS, Pair, profile_of


def profile_for(pair: Pair) -> Profile:
    return profile_of(pair, machine_named("8xH800"), READINGS[0])


def require_whole(contests: Sequence[Contest]) -> None:
    for contest in contests:
        labels = [each.label for each in contest.contestants]
        assert len(labels) == len(set(labels)), labels
        assert labels[0] == "none"
        assert isinstance(contest.contestants[0].drafter, NoDrafter)
        assert all(each.words for each in contest.contestants)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_every_pair_has_its_tables_at_the_papers_times(pair: Pair) -> None:
    profile = profile_for(pair)
    contests = swiftspec.paced_contests(pair, profile, BUILTIN_DRAFT, 2.0, chosen=5)
    require_whole(contests)
    table = {each.label: each for each in contests[0].contestants}
    assert {"serial_depth5", "serial_depth6", "parallel_4+4", "parallel_6+2"} <= set(table)
    assert "parallel_5+3" in {each.label for each in contests[1].contestants}
    without = swiftspec.paced_contests(pair, profile, BUILTIN_DRAFT, 2.0, chosen=None)
    assert [each for each in contests if each.name != "planner"] == list(without)  # so that a run can be extended
    published = table[f"parallel_{pair.target_units}+{pair.draft_units}"]
    assert published.published.tokens_per_s == pair.tokens_per_s
    placement = read_device(str(published.settings["device"]))
    assert placement.target is not None
    assert placement.draft is not None
    assert placement.target.step_s(8) == pytest.approx(2 * profile.target[pair.target_units].step_s(8), rel=1e-3)
    assert placement.draft.step_s(8) == pytest.approx(2 * profile.draft[pair.draft_units].step_s(8), rel=1e-3)


def test_kernels_are_exchanged_only_at_the_speed_of_this_machine() -> None:
    (pair, *_) = PAIRS
    measured = swiftspec.measured_contests(pair, BUILTIN_DRAFT, {}, 2)
    require_whole(measured)
    drafters = [each.drafter for each in measured[0].contestants]
    assert {each.ranks for each in drafters if isinstance(each, Parallel)} == {2}
    kernels = {each.label: each.settings.get("kernels") for each in measured[0].contestants}
    assert kernels["torch_kernels"] == "torch"
    assert kernels["parallel"] is None
    for contest in swiftspec.paced_contests(pair, profile_for(pair), BUILTIN_DRAFT, 1.0, chosen=None):
        assert not any("kernels" in each.settings for each in contest.contestants)


@pytest.mark.parametrize("model", swift.MODELS, ids=lambda model: model.name)
def test_every_model_of_swift_has_its_tables(model: swift.SwiftModel) -> None:
    contests = swift.contests(model)
    require_whole(contests)
    ours = {each.label: each.drafter for contest in contests for each in contest.contestants}
    assert ours["swift"].skip_ratio == model.skip_ratio
    assert not ours["no_bayes"].bayes
    assert len(swift.searches(model)) == 2
