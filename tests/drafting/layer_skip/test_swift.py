"""SWIFT's search: what it proposes, what it keeps, when it ends, and that it is the same each time."""

import random
import sys
from collections.abc import Callable

import numpy as np
import pytest

from forerun.core.errors import ConfigError
from forerun.core.sublayers import SkipSet, every_other_layer
from forerun.drafting.layer_skip.swift import SwiftStrategy, suggest_point

NUM_LAYERS = 7  # 10 sublayers that can be skipped, 4 of them in a candidate
NO_BAYES = 10**9


def easy_score(skipped: SkipSet) -> float:
    """Every skip costs by itself, that of an early layer most: how far up the skipped layers are on average."""
    return sum(layer - 1 for layer, _ in skipped) / (NUM_LAYERS - 3) / len(skipped)


def run(search: SwiftStrategy, num_steps: int) -> list[SkipSet]:
    """The candidates of so many steps, each scored."""
    return [score_next(search, easy_score) for _ in range(num_steps)]


def score_next(search: SwiftStrategy, score: float | Callable[[SkipSet], float]) -> SkipSet:
    """The next candidate, which gets this score."""
    (candidate,) = search.propose(1, 0)
    search.told(candidate, score if isinstance(score, float) else score(candidate), 1)
    return candidate


def test_a_bayesian_point_is_the_same_to_the_last_bit_for_an_equal_seed() -> None:
    scores = {(1.0, 0.0, 0.0): 0.1, (0.0, 1.0, 0.0): 0.3, (0.0, 0.0, 1.0): 0.2}
    first, second, other = (suggest_point(scores, 3, seed=seed).tolist() for seed in (5, 5, 6))
    assert first == second != other


def test_global_generators_are_neither_read_nor_moved() -> None:
    np.random.seed(1)
    random.seed(1)
    numpy_before = np.random.get_state(legacy=False)
    python_before = random.getstate()
    first = run(SwiftStrategy(NUM_LAYERS, bayes_interval=8), 8)
    np.testing.assert_equal(np.random.get_state(legacy=False), numpy_before)
    assert random.getstate() == python_before
    np.random.seed(2)
    random.seed(2)
    assert run(SwiftStrategy(NUM_LAYERS, bayes_interval=8), 8) == first


def test_every_25th_candidate_is_bayesian() -> None:
    search = SwiftStrategy(NUM_LAYERS)
    bayesian = list[int]()
    suggest = search._bayesian_point
    search._bayesian_point = lambda: bayesian.append(search.num_steps + 1) or suggest()  # type: ignore[method-assign, func-returns-value]
    run(search, 52)
    assert bayesian == [25, 50]


def test_the_library_is_not_imported_before_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bayes_opt", None)  # importing it raises
    search = SwiftStrategy(NUM_LAYERS)
    run(search, 24)
    with pytest.raises(ConfigError, match="pip install 'bayesian-optimization"):
        search.propose(1, 0)
    monkeypatch.undo()
    assert len(search.propose(1, 0)[0]) == 4


def test_only_a_strictly_greater_score_is_a_gain() -> None:
    search = SwiftStrategy(NUM_LAYERS)
    score_next(search, 0.0)
    assert search.skipped == every_other_layer(NUM_LAYERS)
    best = score_next(search, 0.5)
    for score in (0.5, 0.25):
        assert score_next(search, score) != best
        assert search.skipped == best
    better = score_next(search, 0.53125)
    assert search.skipped == better
    assert (search.num_steps, search.best_score) == (5, 0.53125)


def num_steps_until_over(search: SwiftStrategy, scores: list[float]) -> int:
    for score in scores:
        score_next(search, score)
        if not search.share:
            break
    return search.num_steps


def test_a_search_ends_above_a_good_score_and_not_at_it() -> None:
    assert num_steps_until_over(SwiftStrategy(NUM_LAYERS), [0.5, 0.95, 0.951, 0.2]) == 3


def test_a_search_ends_after_more_steps_without_gain_than_its_patience() -> None:
    search = SwiftStrategy(NUM_LAYERS, bayes_interval=NO_BAYES)
    assert num_steps_until_over(search, [0.1] + [0.1] * 299 + [0.2] + [0.2] * 400) == 1 + 299 + 1 + 301


def test_guesses_of_drafts_and_candidates_that_got_no_score_count_for_nothing() -> None:
    search = SwiftStrategy(NUM_LAYERS)
    search.propose(1, 0)
    search.told(search.skipped, 1, 1, is_draft=True)
    assert (search.best_score, search.num_steps) == (0.0, 0)
