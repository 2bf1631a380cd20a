"""Tokens per second of skip sets, and the best of all sets."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from forerun.core.pace import Pace
from forerun.core.sublayers import ATTENTION, MLP, NOTHING, SkipSet, skippable
from forerun.drafting.layer_skip.skip_penalties import sigmoid
from forerun.drafting.layer_skip.speed_model import LEAST_PENALTY, SkipCosts, SpeedModel

STEEP = Pace(steps=tuple((rows, 0.010 + 0.001 * rows) for rows in range(1, 17)))


def uneven(num_layers: int, whole_s: float = 0.011) -> SpeedModel:
    """An MLP costs thrice what an attention does, at first; passes get slower with their rows."""
    costs = SkipCosts(
        whole=Pace(steps=((16, whole_s),)),
        attention_s=0.22 * whole_s / num_layers,
        mlp_s=0.66 * whole_s / num_layers,
        context=64,
        attention_slope_s=1e-6,
        num_layers=num_layers,
    )
    return SpeedModel(costs=costs, target=STEEP, round_s=0.0003, expansion_s=0.0001, max_depth=6)


def speed_of(
    speed_model: SpeedModel, intercept: float, penalties: dict[tuple[int, str], float], skipped: SkipSet
) -> float:
    """Written out, at a context of 500."""
    chance = sigmoid(intercept - sum(max(LEAST_PENALTY, penalties[sublayer]) for sublayer in skipped))
    num_attention = sum(kind == ATTENTION for _, kind in skipped)
    draft_s = speed_model.costs.draft_s(num_attention, len(skipped) - num_attention, 500)
    return max(
        (1 - chance ** (depth + 1)) / (1 - chance)
        / (depth * (draft_s + speed_model.expansion_s) + speed_model.target.step_s(depth + 1) + speed_model.round_s)
        for depth in range(1, speed_model.max_depth + 1)
    )  # fmt: skip


@pytest.mark.parametrize("absent", [NOTHING, frozenset({(1, MLP), (3, MLP), (4, ATTENTION), (5, MLP)})])
@pytest.mark.parametrize("seed", range(6))
def test_the_best_set_is_the_best_of_all_sets(seed: int, absent: SkipSet) -> None:
    rng = np.random.default_rng(seed)
    machine = uneven(6)
    machine = replace(machine, costs=replace(machine.costs, absent=absent))
    items = skippable(6, absent)
    intercept = 3.5
    penalties = rng.normal(0.3, 0.4, len(items))
    by_item = dict(zip(items, penalties.tolist(), strict=True))
    sizes = range(1, len(items) + 1)
    sets = [frozenset(chosen) for size in sizes for chosen in itertools.combinations(items, size)]
    best = max(speed_of(machine, intercept, by_item, skipped) for skipped in sets)
    found = machine.best_set(intercept, penalties, 500)
    assert found in sets
    assert speed_of(machine, intercept, by_item, found) == pytest.approx(best)


@pytest.mark.parametrize(
    ("chance", "draft_s", "round_s", "expansion_s", "depth", "tokens_per_s"),
    [
        (1.0, 0.001, 0.0, 0.0, 4, 5 / 0.014),
        (0.0, 0.001, 0.0, 0.001, 4, 1 / 0.012),
        (0.8, 0.005, 0.001, 0.0, 8, (1 + 0.8 + 0.64) / 0.021),
    ],
)
def test_expected_speed_is_tokens_over_seconds_at_the_best_depth(
    chance: float, draft_s: float, round_s: float, expansion_s: float, depth: int, tokens_per_s: float
) -> None:
    target = Pace(steps=((64, 0.010),))
    machine = replace(uneven(10, draft_s), target=target, round_s=round_s, expansion_s=expansion_s, max_depth=depth)
    assert machine.speed(chance, NOTHING, 64) == pytest.approx(tokens_per_s)
