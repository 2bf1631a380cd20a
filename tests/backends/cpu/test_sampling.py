"""Native choosing and ranking against the plain ones: the same tokens, the same totals."""

import random

import pytest
import torch
from torch import Tensor

from forerun.backends.cpu.backend import NATIVE
from forerun.sampling.noise import KeyedNoise, gumbel_rows, splitmix64
from forerun.sampling.sample import sample, topk
from tests.backends.cpu import ops
from tests.marks import rest_slow

pytestmark = pytest.mark.usefixtures("tier")
SIZES = [1, 2, 5, 15, 16, 17, 100, 1000, 4097]
NAN = float("nan")
INF = float("inf")


def random_scores(rng: random.Random, size: int) -> Tensor:
    """Logits of one row, some of them filtered out, some rows full of ties, some far from zero."""
    scores = torch.randn(size, generator=torch.Generator().manual_seed(rng.randrange(2**31))) * rng.choice([0.1, 1, 20])
    if rng.random() < 0.3:
        scores = scores.round()
    if rng.random() < 0.3:
        scores += rng.choice([-1e3, 1e4])
    if rng.random() < 0.3:
        scores[scores < scores.topk(min(size, rng.randrange(1, 20))).values[-1]] = -INF
    return scores


def noise_of(seed: int, position: int, size: int) -> tuple[int, Tensor]:
    return splitmix64(splitmix64(seed) ^ position), gumbel_rows(seed, [position], size, device="cpu")


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_choice_is_that_of_the_plain_formula(temperature: float) -> None:
    for size in SIZES:
        rng = random.Random(size)
        for seed in range(40):
            scores = random_scores(rng, size)
            for key, noise in ((None, None), noise_of(seed, rng.randrange(5000), size)):
                plain = sample(scores[None] / temperature, noise)
                token, best, second = ops.sample(scores, key=key, temperature=temperature)
                assert token == plain.token_ids[0]
                ulp = 2**-23 * max(abs(best), abs(second) if second > -INF else 0.0)
                assert best - second == plain.margins[0] or abs(best - second - plain.margins[0]) <= ulp


def test_the_choice_among_totals_an_ulp_apart_is_exact() -> None:
    for seed in range(20):
        key, noise = noise_of(seed, 11, 1000)
        nudges = torch.randint(0, 4, (1000,), generator=torch.Generator().manual_seed(seed)) * 2.0**-22
        scores = nudges - noise[0]
        plain = sample(scores[None], noise)
        token, best, second = ops.sample(scores, key=key)
        assert token == plain.token_ids[0]
        assert best - second == plain.margins[0]


@pytest.mark.parametrize("fault", [NAN, INF])
@pytest.mark.parametrize("key", [None, 12345])
def test_what_is_no_number_shows_in_the_best_total(fault: float, key: int | None) -> None:
    for place in (0, 15, 16, 33, 36):
        scores = torch.randn(37, generator=torch.Generator().manual_seed(1))
        scores[place] = fault
        token, best, _ = ops.sample(scores, key=key)
        assert token == place
        assert not -INF < best < INF


@pytest.mark.parametrize("key", [None, 12345])
def test_a_row_without_any_token_has_no_best_total(key: int | None) -> None:
    assert ops.sample(torch.full((37,), -INF), key=key)[1] == -INF


def test_ties_go_to_the_lowest_token() -> None:
    scores = torch.zeros(100)
    scores[[70, 35, 36]] = 1.0
    assert ops.sample(scores) == (35, 1.0, 1.0)
    assert ops.topk(scores, 4).token_ids == [35, 36, 70, 0]


@pytest.mark.parametrize("most", [1, 4, 16])
def test_ranks_are_those_of_the_plain_formula(most: int) -> None:
    for size in (1, 3, 30, 100, 4096, 20011):
        rng = random.Random(size)
        count = min(size, most)
        for seed in range(20):
            scores = torch.randn(size, generator=torch.Generator().manual_seed(seed)) * rng.choice([0.1, 1, 20])
            for key, noise in ((None, None), noise_of(seed, rng.randrange(5000), size)):
                ids, log_probs = topk(scores[None] / 0.7, noise, count)
                ranking = ops.topk(scores, count, key=key, temperature=0.7)
                actual = torch.tensor(ranking.totals) - ranking.log_sum
                torch.testing.assert_close(actual, torch.tensor(log_probs[0]), atol=2e-5, rtol=2e-6)
                leads = torch.tensor(log_probs[0]).diff().abs()
                if (leads > 1e-4).all():
                    assert ranking.token_ids == ids[0]


@pytest.mark.parametrize("seeds", rest_slow([range(5), range(5, 20)], 1), ids=str)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_ranks_of_some_tokens_have_the_noise_of_these_tokens(temperature: float, seeds: range) -> None:
    """Against a row of the whole vocabulary in which the others are forbidden."""
    for size in (1, 3, 16, 30, 100, 4096, 20011):
        rng = random.Random(size + seeds.start)
        for seed in seeds:
            ids = torch.tensor(sorted(rng.sample(range(3 * size), size)), dtype=torch.int32)
            whole = torch.full((3 * size,), -INF)
            scores = torch.randn(size, generator=torch.Generator().manual_seed(seed)) * rng.choice([0.1, 1, 20])
            whole[ids] = scores
            for key, noise in ((None, None), noise_of(seed, rng.randrange(5000), 3 * size)):
                count = min(size, rng.choice([1, 4, 16]))
                expected, log_probs = topk(whole[None] / temperature, noise, count)
                of_torch = topk(scores[None] / temperature, noise, count, column_ids=ids)
                ranking = ops.topk(scores, count, key=key, temperature=temperature, ids=ids)
                actual = torch.tensor(ranking.totals) - ranking.log_sum
                torch.testing.assert_close(actual, torch.tensor(log_probs[0]), atol=2e-5, rtol=2e-6)
                torch.testing.assert_close(torch.tensor(of_torch[1]), torch.tensor(log_probs), atol=2e-5, rtol=2e-6)
                assert set(ranking.token_ids) <= set(ids.tolist())
                leads = torch.tensor(log_probs[0]).diff().abs()
                if (leads > 1e-4).all():
                    assert ranking.token_ids == of_torch[0][0] == expected[0]


def test_nan_shows_in_the_sum_of_a_rank() -> None:
    scores = torch.zeros(40)
    scores[21] = NAN
    assert ops.topk(scores, 4).log_sum != ops.topk(scores, 4).log_sum


def test_a_row_that_threads_share_has_the_token_and_lead_that_it_has_among_others() -> None:
    """One row of a large vocabulary is cut into slices, one for each thread; many rows are dealt out whole."""
    size = 1 << 18
    noise = KeyedNoise(3, 1 << 18)
    scores = torch.randn(4, size, generator=torch.Generator().manual_seed(1))
    scores[1] = 0.0
    num_threads = torch.get_num_threads()
    try:
        for keyed in (None, noise.at([5, 6, 7, 8])):
            torch.set_num_threads(1)
            together = NATIVE.sample(scores, keyed)
            torch.set_num_threads(3)
            for row in range(4):
                alone = NATIVE.sample(scores[row : row + 1], None if keyed is None else noise.at([5 + row]))
                assert (alone.token_ids[0], alone.margins[0]) == (together.token_ids[row], together.margins[row])
    finally:
        torch.set_num_threads(num_threads)
