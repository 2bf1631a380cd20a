"""Keyed noise: a function of (seed, position, token id), the same bits in any order, as good as random."""

import random

import pytest
import torch

from forerun.core.config import SamplingParams
from forerun.sampling.noise import KeyedNoise, gumbel_rows
from forerun.sampling.sample import sample
from forerun.sampling.truncation import filter_scores
from tests.chi_square import chi_square_p_value
from tests.dense_reference import gumbel
from tests.marks import rest_slow

ALPHA = 1e-6
LARGEST_SEED = 2**63 - 1
# Pinned: a change of these changes every sampled text that anyone has reproduced with a seed.
GOLDEN = {
    (0, 0, 0): 0.3141233026981354,
    (0, 0, 1): 0.8277367949485779,
    (0, 1, 0): -1.4514424800872803,
    (1, 0, 0): 0.15641936659812927,
    (42, 7, 1234): -0.2587677836418152,
    (123456789, 100000, 151935): 3.866950035095215,
    (9223372036854775807, 1, 31999): 3.589268922805786,
    (9223372036854775807, 131071, 0): 2.61014461517334,
}


@pytest.mark.parametrize(("key", "value"), GOLDEN.items())
def test_noise_never_changes(key: tuple[int, int, int], value: float) -> None:
    seed, position, token_id = key
    assert KeyedNoise(seed, token_id + 1).rows([position])[0, token_id].item() == value


def test_noise_equals_that_of_whole_number_arithmetic() -> None:
    rng = random.Random(0)
    for _ in range(300):
        seed = rng.randrange(2**63)
        position = rng.randrange(2**20)
        vocab_size = rng.choice([1, 7, 500])
        row = gumbel_rows(seed, [position], vocab_size, device="cpu")[0]
        token_id = rng.randrange(vocab_size)
        assert row[token_id].item() == pytest.approx(gumbel(seed, position, token_id), rel=2e-7)


def test_a_longer_vocabulary_keeps_the_noise_of_the_shorter_one() -> None:
    positions = [0, 17, 4095]
    short, long = (gumbel_rows(9, positions, vocab_size, device="cpu") for vocab_size in (100, 70_000))
    assert torch.equal(short, long[:, :100])


def test_noise_is_finite_and_differs_between_seeds_positions_and_tokens() -> None:
    for seed in (0, 1, LARGEST_SEED):
        assert gumbel_rows(seed, range(64), 4096, device="cpu").isfinite().all()
    base = gumbel_rows(1, [5], 1000, device="cpu")[0]
    assert base.unique().numel() == 1000
    for other in (gumbel_rows(2, [5], 1000, device="cpu"), gumbel_rows(1, [6], 1000, device="cpu")):
        assert (base != other[0]).all()


def test_a_seed_and_a_position_cannot_be_traded_for_each_other() -> None:
    """A key made of seed + position or seed ^ position would share rows between requests."""
    rows = {(seed, place): gumbel_rows(seed, [place], 8, device="cpu")[0] for seed in range(8) for place in range(8)}
    texts = {tuple(row.tolist()) for row in rows.values()}
    assert len(texts) == len(rows)


LAWS = {
    "one rare token": (200_000, [0.9, 0.0999, 0.0001], SamplingParams(temperature=1.0)),
    "temperature": (200_000, [0.4, 0.3, 0.2, 0.05, 0.05], SamplingParams(temperature=0.7)),
    "filters": (
        200_000,
        [0.3, 0.25, 0.2, 0.1, 0.1, 0.05],
        SamplingParams(temperature=1.3, top_k=5, top_p=0.9, min_p=0.1),
    ),
    "three tokens": (1_000_000, [0.5, 0.3, 0.2], SamplingParams(temperature=1.0)),
}


@pytest.mark.parametrize("law", rest_slow(LAWS, 3))
def test_choosing_by_score_plus_noise_draws_from_the_law(law: str) -> None:
    """The Gumbel-max identity, on keyed draws."""
    num_draws, probs, params = LAWS[law]
    scores = filter_scores(torch.tensor([probs]).log() / params.temperature, params)
    noise = gumbel_rows(123, range(num_draws), len(probs), device="cpu")
    draws = torch.tensor(sample(scores.expand(num_draws, -1), noise).token_ids)
    counts = torch.bincount(draws, minlength=len(probs))
    expected = scores.double().softmax(-1)[0] * num_draws
    assert counts[expected == 0].sum() == 0, "a token outside the filters was chosen"
    live = expected > 0
    assert chi_square_p_value(counts[live].tolist(), expected[live].tolist()) > ALPHA
