"""Tokens of scores on a GPU: those that the CPU chooses from the same scores."""

import pytest
import torch

from forerun.sampling.noise import KeyedNoise
from forerun.sampling.sample import sample, topk

pytest.importorskip("triton")

from forerun.backends.gpu.choosing import score_rows as sampler

VOCAB_SIZE, NUM_ROWS, TEMPERATURE = 1500, 3, 0.7
PLACES = [11, 12, 12]
SCORES = 3.0 * torch.randn(NUM_ROWS, VOCAB_SIZE, generator=torch.Generator().manual_seed(4))
NOISE = KeyedNoise(77, VOCAB_SIZE).at(PLACES)
SAME_NOISE = sampler.RowNoise(seed_mix=NOISE.seed_mix, positions=PLACES)


@pytest.mark.parametrize("is_noisy", [False, True])
def test_choices_and_rankings_are_those_of_the_cpu(is_noisy: bool, device: str) -> None:
    noise, same = (NOISE, SAME_NOISE) if is_noisy else (None, None)
    expected = sample(SCORES, noise, temperature=TEMPERATURE)
    tokens, bests, seconds = sampler.choose_rows(SCORES.to(device), same, TEMPERATURE)
    assert tokens == expected.token_ids
    assert [best - second for best, second in zip(bests, seconds, strict=True)] == pytest.approx(expected.margins, 1e-4)
    ranked, log_probs = sampler.rank_rows(SCORES.to(device), same, TEMPERATURE, 4)
    expected_tokens, expected_log_probs = topk(SCORES, noise, 4, temperature=TEMPERATURE)
    assert ranked == expected_tokens
    assert torch.tensor(log_probs).allclose(torch.tensor(expected_log_probs), atol=1e-4)


@pytest.mark.gpu
def test_choose_takes_the_gpus_kernels_by_itself() -> None:
    noise = KeyedNoise(77, VOCAB_SIZE, device="cuda").at(PLACES)
    assert sample(SCORES.cuda(), noise).token_ids == sample(SCORES, NOISE).token_ids
