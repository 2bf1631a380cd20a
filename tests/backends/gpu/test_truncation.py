"""Filters on whole rows of scores by Triton's kernels, against a sort of every row.

Legend: T rows, V vocabulary.
"""

import random
from typing import Any

import pytest
import torch

from forerun.backends.gpu.backend import TRITON
from forerun.core.config import SamplingParams
from forerun.core.errors import NumericalError
from forerun.sampling.noise import KeyedNoise
from forerun.sampling.sample import LogitShaper, sample
from tests.marks import in_turn, rest_slow
from tests.sampling.test_truncation import kept_by_sorting

pytest.importorskip("triton")

from forerun.backends.gpu.sampling.truncation import LEADERS, truncated

NUM_LEADERS = LEADERS.value
MANY = 16500  # More tokens than LEADERS tiles have, so that only leading ones are looked at.
FEW = 300
NAN = float("nan")
INF = float("inf")


def params_of(**changes: Any) -> SamplingParams:
    return SamplingParams(temperature=1.0, **changes)


@pytest.mark.parametrize("vocab_size", [1, 7, FEW, MANY])
@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 30))])
def test_the_same_tokens_stay_as_by_sorting_everything(vocab_size: int, seed: int) -> None:
    rng = random.Random(f"{vocab_size} {seed}")
    params = params_of(
        top_k=rng.choice([0, 1, 5, NUM_LEADERS, NUM_LEADERS + 50, 10 * MANY]),
        top_p=rng.choice([1.0, 0.9, 0.5, 0.999]),
        min_p=rng.choice([0.0, 0.02, 0.5]),
    )
    scores_TV = torch.randn(3, vocab_size, generator=torch.Generator().manual_seed(seed)) * rng.choice([0.1, 1.0, 4.0])
    kept_TV = truncated(scores_TV, params)
    for row, kept_V in enumerate(kept_TV):
        stays_V = kept_V > -INF
        assert set(stays_V.nonzero()[:, 0].tolist()) == kept_by_sorting(scores_TV[row].double(), params), params
        assert kept_V[stays_V].equal(scores_TV[row][stays_V])


@pytest.mark.parametrize("vocab_size", [FEW, MANY])
def test_ties_at_the_edge_go_to_the_lowest_ids(vocab_size: int) -> None:
    scores_TV = torch.zeros(1, vocab_size)
    scores_TV[0, 3:9] = -0.0
    scores_TV[0, vocab_size - 2] = 1.0
    kept_TV = truncated(scores_TV, params_of(top_k=7))
    assert (kept_TV[0] > -INF).nonzero()[:, 0].tolist() == [*range(6), vocab_size - 2]


@pytest.mark.parametrize(("top_p", "num_kept"), [(0.25, 2), (0.2501, 3), (0.5, 4), (0.125, 1), (1e-9, 1), (0.999, 8)])
def test_tokens_that_reach_top_p_exactly_are_enough(top_p: float, num_kept: int) -> None:
    kept_TV = truncated(torch.zeros(1, 8), params_of(top_p=top_p))
    assert (kept_TV[0] == 0).nonzero()[:, 0].tolist() == list(range(num_kept))


@pytest.mark.parametrize("settings", rest_slow([
    {"top_p": 0.9}, {"top_k": NUM_LEADERS + 50, "top_p": 0.5}, {"top_p": 0.5, "min_p": 0.6}
], 1))  # fmt: skip
def test_a_flat_neighbour_changes_nothing(settings: dict[str, Any]) -> None:
    """Of the flat row more tokens stay than the leading ones."""
    noise_TV = torch.randn(2, MANY, generator=torch.Generator().manual_seed(4))
    scores_TV = noise_TV * torch.tensor([[4.0], [0.01]])
    together_TV = truncated(scores_TV, params_of(**settings))
    for row in range(2):
        assert together_TV[row].equal(truncated(scores_TV[row : row + 1], params_of(**settings))[0])


@pytest.mark.parametrize(("settings", "damage"), in_turn([
    {"top_k": 1}, {"top_k": 50}, {"top_k": 300}, {"top_p": 0.9}, {"min_p": 0.1}, {"min_p": 1.0},
    {"top_k": 300, "top_p": 0.5, "min_p": 0.01}, {"presence_penalty": 1.0, "top_k": 5},
    {"logit_bias": {3: -INF}, "top_p": 0.3},
], [[NAN], [NAN] * 60, [INF], [-INF] * 1000]))  # fmt: skip
def test_no_filter_hides_a_damaged_row(settings: dict[str, Any], damage: list[float]) -> None:
    logits_TV = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0))
    logits_TV[1, : len(damage)] = torch.tensor(damage)
    shaper = LogitShaper(params_of(**settings), 1000, [3], truncate=TRITON.truncate)
    scores_TV = shaper.shape(logits_TV, [[], [7], []])
    with pytest.raises(NumericalError, match="row 1"):
        sample(scores_TV, KeyedNoise(1, 1000).at([4, 5, 6]))


def test_scores_are_left_as_they_were() -> None:
    scores_TV = torch.randn(2, FEW)
    before_TV = scores_TV.clone()
    truncated(scores_TV, params_of(top_k=3))
    assert scores_TV.equal(before_TV)
