"""SWIFT's search: what it proposes, what it keeps, when it ends, and that it is the same each time."""

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from forerun.core.drafter_config import LayerSkip, paper_layer_skip
from forerun.core.errors import ConfigError
from forerun.core.sublayers import ATTENTION, MLP, SkipSet, every_other_layer
from forerun.drafting.layer_skip.swift_strategy import SwiftStrategy, load_library, paper_skip_ratio, suggest_point
from tests.tiny import plain_spec

NUM_LAYERS = 7  # 10 sublayers that can be skipped, 4 of them in a candidate


def swift(**changes: Any) -> LayerSkip:
    """The paper's settings with these changes."""
    return replace(paper_layer_skip(), **changes)


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
    load_library()  # its import moves Python's
    np.random.seed(1)
    random.seed(1)
    numpy_before = np.random.get_state(legacy=False)
    python_before = random.getstate()
    first = run(SwiftStrategy(NUM_LAYERS, swift(bayes_interval=8)), 8)
    np.testing.assert_equal(np.random.get_state(legacy=False), numpy_before)
    assert random.getstate() == python_before
    np.random.seed(2)
    random.seed(2)
    assert run(SwiftStrategy(NUM_LAYERS, swift(bayes_interval=8)), 8) == first


def test_candidates_skip_their_share_of_what_there_is() -> None:
    absent = frozenset((layer, (ATTENTION, MLP)[layer % 2]) for layer in range(NUM_LAYERS))
    search = SwiftStrategy(NUM_LAYERS, swift(bayes_interval=8), absent=absent)
    first = search.skipped
    assert {len(skipped) for skipped in run(search, 16) if not skipped & absent} == {2}
    assert first == every_other_layer(NUM_LAYERS) - absent


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
    search = SwiftStrategy(NUM_LAYERS, swift(bayes=False))
    assert num_steps_until_over(search, [0.1] + [0.1] * 299 + [0.2] + [0.2] * 400) == 1 + 299 + 1 + 301


def test_guesses_of_drafts_and_candidates_that_got_no_score_count_for_nothing() -> None:
    search = SwiftStrategy(NUM_LAYERS)
    search.propose(1, 0)
    search.told(search.skipped, 1, 1, is_draft=True)
    assert (search.best_score, search.num_steps) == (0.0, 0)


def test_every_limit_and_interval_is_a_setting() -> None:
    few = swift(max_steps=5, bayes=False)
    assert num_steps_until_over(SwiftStrategy(NUM_LAYERS, few), [0.1] * 9) == 6
    impatient = swift(patience=2, bayes=False)
    assert num_steps_until_over(SwiftStrategy(NUM_LAYERS, impatient), [0.1] * 9) == 4
    assert num_steps_until_over(SwiftStrategy(NUM_LAYERS, swift(max_score=0.4)), [0.4, 0.41, 0.1]) == 2
    for ratio, num_skipped in ((0.01, 1), (0.45, 4), (0.5, 5), (1.0, 10)):
        assert len(score_next(SwiftStrategy(NUM_LAYERS, swift(skip_ratio=ratio)), 0.1)) == num_skipped
    short = SwiftStrategy(NUM_LAYERS, swift(window=8))
    assert (short.window(3, 13), short.window(3, 14)) == (range(3, 3), range(3, 11))


def test_the_ratio_of_a_large_model_is_larger() -> None:
    spec = plain_spec()
    assert paper_skip_ratio(spec) == 0.45
    large = replace(spec, num_layers=52, hidden_size=8192, intermediate_size=22016, num_heads=64, head_dim=128)
    assert large.num_parameters > 33.5e9
    assert paper_skip_ratio(large) == 0.5


def test_the_process_learns_the_point_that_a_candidate_was_rounded_from() -> None:
    """As SWIFT's code does; a random candidate is a corner."""
    search = SwiftStrategy(NUM_LAYERS, swift(bayes_interval=2))
    point = np.linspace(0.1, 0.9, 10)
    search._bayesian_point = lambda: point  # type: ignore[method-assign]
    run(search, 2)
    corner, second = search._scores
    assert set(corner) == {0.0, 1.0}
    assert sum(corner) == 4.0
    assert second == tuple(point.tolist())
