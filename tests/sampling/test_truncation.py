"""Filters that look at the leading tokens only, against a whole sort of every row."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from forerun.core.config import SamplingParams
from forerun.core.errors import NumericalError
from forerun.sampling.noise import KeyedNoise
from forerun.sampling.sample import LogitShaper, sample
from forerun.sampling.truncation import LEADING_TOKENS, filter_scores

VOCAB_SIZE = 3 * LEADING_TOKENS
NAN = float("nan")
INF = float("inf")


def kept_by_sorting(scores_V: Tensor, params: SamplingParams) -> set[int]:
    """Ids that stay, by a stable sort of the whole row."""
    order = sorted(range(len(scores_V)), key=lambda token: (-scores_V[token].item(), token))
    order = order[: params.top_k] if params.top_k else order
    probs = scores_V[order].softmax(0)
    before = torch.cat((torch.zeros(1, dtype=probs.dtype), probs.cumsum(0)[:-1]))
    nucleus = [token for token, mass in zip(order, before.tolist(), strict=True) if mass < params.top_p]
    best = scores_V[order[0]]
    return {token for token in nucleus if (scores_V[token] - best).exp() >= params.min_p}


@pytest.mark.parametrize("seed", range(30))
def test_the_same_tokens_stay_as_by_sorting_everything(seed: int) -> None:
    rng = random.Random(seed)
    params = SamplingParams(
        temperature=1.0,
        top_k=rng.choice([0, 1, 5, LEADING_TOKENS, LEADING_TOKENS + 9, 10 * VOCAB_SIZE]),
        top_p=rng.choice([1.0, 0.9, 0.5, 0.999]),
        min_p=rng.choice([0.0, 0.02, 0.5]),
    )
    scale = rng.choice([0.1, 1.0, 4.0])  # flat rows keep more tokens than the leading ones
    scores = torch.randn(5, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)).double() * scale
    if rng.random() < 0.5:
        scores = (scores * 2).round() / 2  # many ties
    kept = filter_scores(scores, params)
    for row in range(len(scores)):
        stays = kept[row] > float("-inf")
        if params.top_p < 1.0 and bool((scores[row] * 2 == (scores[row] * 2).round()).all()):
            # Equal scores may be added up in another order: the count may differ by one at the very edge.
            assert abs(int(stays.sum()) - len(kept_by_sorting(scores[row], params))) <= 1
        else:
            assert set(stays.nonzero()[:, 0].tolist()) == kept_by_sorting(scores[row], params)
        assert torch.equal(kept[row][stays], scores[row][stays])


def test_ties_at_the_edge_go_to_the_lowest_ids() -> None:
    kept = filter_scores(torch.zeros(1, VOCAB_SIZE), SamplingParams(temperature=1.0, top_k=7))
    assert (kept[0] == 0).nonzero()[:, 0].tolist() == list(range(7))


@pytest.mark.parametrize("top_k", [0, LEADING_TOKENS + 50, 3 * LEADING_TOKENS, 17 * LEADING_TOKENS])
@pytest.mark.parametrize("top_p", [0.5, 0.9])
def test_a_flat_neighbour_changes_nothing(top_k: int, top_p: float) -> None:
    """The flat row keeps more tokens than the leading ones, the peaked one does not."""
    params = SamplingParams(temperature=1.0, top_k=top_k, top_p=top_p)
    noise = torch.randn(2, 20 * LEADING_TOKENS, generator=torch.Generator().manual_seed(4))
    scores = noise * torch.tensor([[2.0], [0.01]])
    together = filter_scores(scores, params)
    for row in range(2):
        assert torch.equal(together[row], filter_scores(scores[row : row + 1], params)[0])
        assert set((together[row] > float("-inf")).nonzero()[:, 0].tolist()) == kept_by_sorting(scores[row], params)


@pytest.mark.parametrize(("top_p", "num_kept"), [(0.25, 2), (0.2501, 3), (0.5, 4), (0.125, 1), (1e-9, 1), (0.999, 8)])
def test_tokens_that_reach_top_p_exactly_are_enough(top_p: float, num_kept: int) -> None:
    kept = filter_scores(torch.zeros(1, 8), SamplingParams(temperature=1.0, top_p=top_p))
    assert (kept[0] == 0).nonzero()[:, 0].tolist() == list(range(num_kept))


@pytest.mark.parametrize("settings", [
    {"top_k": 1}, {"top_k": 50}, {"top_k": 300}, {"top_k": 10**6}, {"top_p": 0.9}, {"min_p": 0.1}, {"min_p": 1.0},
    {"top_k": 50, "top_p": 0.5}, {"top_k": 300, "top_p": 0.5, "min_p": 0.01}, {"repetition_penalty": 1.3},
    {"presence_penalty": 1.0, "top_k": 5}, {"logit_bias": {3: -INF}}, {"logit_bias": {3: 2.0}, "top_p": 0.3},
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_no_filter_hides_a_damaged_row(settings: dict[str, Any], dtype: torch.dtype) -> None:
    for damage in ([NAN], [NAN] * 60, [INF]):
        logits = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0)).to(dtype)
        logits[1, 3 : 3 + len(damage)] = torch.tensor(damage)
        params = SamplingParams(temperature=1.0, **settings)
        shaper = LogitShaper(params, 1000, [3])
        scores = shaper.shape(logits, [[], [7], []])
        with pytest.raises(NumericalError, match="row 1"):
            sample(scores, KeyedNoise(1, 1000).at([4, 5, 6]), temperature=shaper.temperature_left)
