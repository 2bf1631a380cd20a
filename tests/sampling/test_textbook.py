"""Shaping and choosing, row by row, against a sampler written from the textbooks, on the same noise."""

import random

import numpy as np
import pytest
import torch

from forerun.sampling.noise import KeyedNoise
from forerun.sampling.sample import LogitShaper, sample
from tests.random_settings import random_logits, random_params
from tests.textbook import gumbel, pick

NUM_CASES = 100
NUM_ROWS = 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_choices_are_the_textbooks(dtype: torch.dtype) -> None:
    num_chosen = 0
    for case in range(NUM_CASES):
        rng = random.Random(f"{case} {dtype}")
        vocab_size = rng.choice([2, 7, 60, 300, 1500, 1500, 4000])
        params = random_params(rng, vocab_size)
        prompt_ids = [rng.randrange(vocab_size) for _ in range(rng.randint(1, 30))]
        answer = [rng.randrange(vocab_size) for _ in range(rng.randint(0, 30))]
        paths = [[rng.randrange(vocab_size) for _ in range(rng.randint(0, 4))] for _ in range(NUM_ROWS)]
        logits = random_logits(rng, NUM_ROWS, vocab_size, dtype)
        shaper = LogitShaper(params, vocab_size, prompt_ids)
        shaper.commit(answer)
        noise = KeyedNoise(case, vocab_size)
        scores = shaper.shape(logits, paths)
        for row, path in enumerate(paths):
            noise_V = None if params.is_greedy else gumbel(case, row, vocab_size)
            wide_V = logits[row].double().numpy() if dtype == torch.float64 else logits[row].float().numpy()
            expected = pick(wide_V, params, prompt_ids, [*answer, *path], noise_V)
            if expected is None:
                continue
            rows = None if params.is_greedy else noise.at([row])
            chosen = sample(scores[row : row + 1], rows, temperature=shaper.temperature_left).token_ids[0]
            assert chosen in expected.possible, (case, row, params, chosen, expected)
            num_chosen += len(expected.possible) == 1
    assert num_chosen > 0.75 * NUM_CASES * NUM_ROWS


def test_noise_is_the_textbooks() -> None:
    for position in (0, 9, 2**31):
        assert np.array_equal(KeyedNoise(7, 5000).rows([position])[0].numpy(), gumbel(7, position, 5000))
