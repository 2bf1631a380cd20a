"""Filters that look at the leading tokens only, against a whole sort of every row."""

import random

import pytest
import torch
from torch import Tensor

from forerun.core.config import SamplingParams
from forerun.sampling.filters import LEADING_TOKENS, filter_scores

VOCAB_SIZE = 3 * LEADING_TOKENS


def kept_by_sorting(scores_V: Tensor, params: SamplingParams) -> set[int]:
    """Ids that stay, by a stable sort of the whole row."""
    order = sorted(range(len(scores_V)), key=lambda token: (-scores_V[token].item(), token))
    order = order[: params.top_k] if params.top_k else order
    probs = scores_V[order].softmax(0)
    before = torch.cat((torch.zeros(1, dtype=probs.dtype), probs.cumsum(0)[:-1]))
    nucleus = [token for token, mass in zip(order, before.tolist(), strict=True) if mass < params.top_p]
    best = scores_V[order[0]]
    return {token for token in nucleus if (scores_V[token] - best).exp() >= params.min_p}


@pytest.mark.parametrize("seed", range(60))
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
