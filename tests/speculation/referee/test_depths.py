"""How many draft passes a round is worth."""

import random

import pytest

from forerun.speculation.referee.depths import LOOK_FURTHER, DepthRule


def times(target_s: float, draft_s: float, most: int = 8) -> list[float]:
    return [target_s + depth * draft_s for depth in range(most + 1)]


def settle(rule: DepthRule, chance: float, costs: list[float], rounds: int = 600, seed: int = 0) -> list[int]:
    """Depths of the last rounds when every level is accepted with this chance."""
    rng = random.Random(seed)
    depths = []
    for _ in range(rounds):
        depth = rule.depth()
        accepted = 0
        while accepted < depth and rng.random() < chance:
            accepted += 1
        rule.measure(depth, accepted, costs[depth])
        depths.append(depth)
    return depths[-LOOK_FURTHER * 8 :]


def best_depth(chance: float, costs: list[float]) -> int:
    speeds = [sum(chance**level for level in range(depth + 1)) / cost for depth, cost in enumerate(costs)]
    return max(range(len(speeds)), key=speeds.__getitem__)


@pytest.mark.parametrize(("chance", "draft_s"), [(0.9, 0.1), (0.7, 0.1), (0.5, 0.2), (0.8, 0.4)])
def test_the_depth_settles_within_one_of_the_fastest(chance: float, draft_s: float) -> None:
    costs = times(1.0, draft_s)
    depths = settle(DepthRule(costs), chance, costs)
    usual = max(set(depths), key=depths.count)
    assert abs(usual - best_depth(chance, costs)) <= 1


def test_a_draft_that_never_comes_true_is_hardly_run() -> None:
    costs = times(1.0, 0.5)
    depths = settle(DepthRule(costs), 0.0, costs)
    assert sum(depths) <= len(depths) / LOOK_FURTHER


def test_a_draft_that_becomes_good_is_found_again() -> None:
    costs = times(1.0, 0.1)
    rule = DepthRule(costs)
    settle(rule, 0.0, costs)
    depths = settle(rule, 0.95, costs, rounds=3000)
    assert min(depths) >= 4


def test_measured_times_replace_the_first_ones() -> None:
    slow = times(1.0, 2.0)
    rule = DepthRule(times(1.0, 0.01))
    assert rule.depth() > 2
    assert max(settle(rule, 0.5, slow, rounds=2000)) <= 1
