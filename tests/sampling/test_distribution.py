"""Logits to scores against a row-by-row reference, and the same for any row however many rows there are."""

import random

import pytest
import torch

from forerun.core.config import SamplingParams
from forerun.sampling.sample import LogitShaper
from tests.dense_reference import shaped_scores
from tests.random_settings import random_params

VOCAB_SIZE = 23


@pytest.mark.parametrize("seed", range(50))
def test_scores_equal_those_of_one_row_at_a_time(seed: int) -> None:
    rng = random.Random(seed)
    params = random_params(rng, VOCAB_SIZE)
    prompt_ids = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 10))]
    shaper = LogitShaper(params, VOCAB_SIZE, prompt_ids)
    answer: list[int] = []
    for _ in range(3):
        new = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(0, 5))]
        shaper.commit(new)
        answer += new
        paths = [[rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(0, 4))] for _ in range(rng.randint(1, 6))]
        logits = torch.randn(len(paths), VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)).double() * 3
        scores = shaper.shape(logits, paths) / shaper.temperature_left
        for row, path in enumerate(paths):
            expected = shaped_scores(logits[row].tolist(), params, prompt_ids, [*answer, *path])
            assert scores[row].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("seed", range(8))
def test_a_rows_scores_have_the_same_bits_alone_and_among_others(seed: int, dtype: torch.dtype) -> None:
    rng = random.Random(seed)
    shaper = LogitShaper(random_params(rng, 1000), 1000, [1, 2, 3])
    logits = (torch.randn(9, 1000, generator=torch.Generator().manual_seed(seed)) * 3).to(dtype)
    paths = [[rng.randrange(1000) for _ in range(row % 4)] for row in range(9)]
    together = shaper.shape(logits, paths)
    alone = [shaper.shape(logits[row : row + 1], paths[row : row + 1]) for row in range(9)]
    assert torch.equal(together, torch.cat(alone))


def test_shaping_drafted_paths_counts_nothing_for_good() -> None:
    shaper = LogitShaper(SamplingParams(presence_penalty=1.0, frequency_penalty=1.0), VOCAB_SIZE, [0])
    logits = torch.zeros(1, VOCAB_SIZE)
    before = shaper.shape(logits, [[]])
    shaper.shape(logits, [[4, 4, 5]])
    assert torch.equal(shaper.shape(logits, [[]]), before)


def test_greedy_scores_take_penalties_and_bias_but_no_filter() -> None:
    params = SamplingParams(top_k=1, top_p=0.1, min_p=1.0, logit_bias={2: 5.0})
    scores = LogitShaper(params, 4, []).shape(torch.tensor([[0.0, 3.0, 1.0, 2.0]]))
    assert scores.tolist() == [[0.0, 3.0, 6.0, 2.0]]


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(temperature=1.0, top_k=2), {1, 3}),
        (SamplingParams(temperature=1.0, top_p=0.6), {1, 3}),
        (SamplingParams(temperature=1.0, top_p=0.05), {1}),
        (SamplingParams(temperature=1.0, min_p=0.6), {1, 3}),
        (SamplingParams(temperature=1.0, min_p=1.0), {1}),
        (SamplingParams(temperature=1.0, top_k=3, top_p=0.99, min_p=0.3), {1, 3, 2}),
    ],
)
def test_filters_keep_the_named_tokens(params: SamplingParams, kept: set[int]) -> None:
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()
    scores = LogitShaper(params, 4, []).shape(logits)
    assert set((scores[0] > float("-inf")).nonzero()[:, 0].tolist()) == kept
