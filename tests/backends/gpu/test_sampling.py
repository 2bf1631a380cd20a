"""Scores and hidden rows to tokens, against forerun.sampling and plain products.

Legend: T rows, V vocabulary, H hidden size.
"""

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.sampling.gumbel_noise import Draw, exact_noise, quick_noise, row_keys
from forerun.backends.gpu.sampling.join_tiles import Sampled, TopK
from forerun.backends.gpu.sampling.tile_maxima import TileMaxima
from forerun.sampling.noise import gumbel_rows, signed32, splitmix64
from forerun.sampling.sample import sample, topk
from tests.backends.gpu.scores import sample_scores, topk_scores

SEED = 2**63 + 12345
SPARE = 3  # rows behind the last one that nobody may write


def signed64(value: int) -> int:
    return signed32(value >> 32) << 32 | value & 0xFFFFFFFF


def draw_of(*, temperature: float = 1.0, positions: list[int] | None = None, seed: int = SEED) -> Draw:
    """With noise if positions are given."""
    seed_mix = None if positions is None else torch.tensor([signed64(splitmix64(seed))])
    return Draw(torch.tensor([temperature]), seed_mix, torch.tensor(positions or [], dtype=torch.int32))


def empty_samples(num_rows: int) -> Sampled:
    size = num_rows + SPARE
    return Sampled(torch.full((size,), -7, dtype=torch.int32), torch.full((size,), -7.0), torch.full((size,), -7.0))


def maxima_for(num_rows: int, vocab_size: int, *, is_topk: bool) -> TileMaxima:
    maxima = TileMaxima.for_vocabulary(vocab_size, block=16, max_rows=num_rows, is_topk=is_topk, device="cpu")
    for tensor in maxima:
        tensor.fill_(-7)
    return maxima


def samples_of(scores_TV: Tensor, draw: Draw, *, first_row: int = 0) -> Sampled:
    sampled = empty_samples(len(scores_TV))
    sample_scores(scores_TV, draw, sampled, maxima_for(*scores_TV.shape, is_topk=False), first_row=first_row)
    assert sampled.tokens[-SPARE:].eq(-7).all()
    return sampled


def topk_of(scores_TV: Tensor, draw: Draw, *, num_children: int, vocab_size: int) -> TopK:
    shape = (len(scores_TV) + SPARE, num_children)
    found = TopK(torch.full(shape, -7, dtype=torch.int32), torch.full(shape, -7.0))
    maxima = maxima_for(*scores_TV.shape, is_topk=True)
    topk_scores(scores_TV, draw, found, maxima, num_children=num_children, vocab_size=vocab_size)
    assert found.tokens[-SPARE:].eq(-7).all()
    return found


def random_scores(num_rows: int, vocab_size: int, *, seed: int = 0) -> Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3


def check_samples(sampled: Sampled, scores_TV: Tensor, noise_TV: Tensor | None, temperature: float) -> None:
    expected = sample(scores_TV, noise_TV, temperature=temperature)
    assert sampled.tokens[:-SPARE].tolist() == expected.token_ids
    margins = (sampled.bests.double() - sampled.seconds.double())[:-SPARE].tolist()
    if scores_TV.shape[1] == 1:  # a single token leads nobody: by nothing here, beyond measure there
        assert margins == [0.0] * len(margins)
    else:
        assert margins == pytest.approx(expected.margins, abs=1e-5)


@triton.jit
def write_noise(seed_mix, positions, exact, quick, ROWS: tl.constexpr, SIZE: tl.constexpr):
    rows_T = tl.arange(0, ROWS)
    tokens_V = tl.arange(0, SIZE)
    low_T, high_T = row_keys(seed_mix, tl.load(positions + rows_T))
    places_TV = rows_T[:, None] * SIZE + tokens_V[None, :]
    tl.store(exact + places_TV, exact_noise(low_T[:, None], high_T[:, None], tokens_V[None, :]))
    tl.store(quick + places_TV, quick_noise(low_T[:, None], high_T[:, None], tokens_V[None, :]))


@pytest.mark.parametrize("seed", [0, 1, SEED])
def test_noise_has_the_bits_it_has_everywhere_else(seed: int) -> None:
    positions = [0, 1, 130, 2**31 - 2]
    size = 1 << 14
    exact_TV = torch.empty(4, size)
    quick_TV = torch.empty(4, size)
    seed_mix = torch.tensor([signed64(splitmix64(seed))])
    write_noise[(1,)](seed_mix, torch.tensor(positions, dtype=torch.int32), exact_TV, quick_TV, 4, size)
    expected_TV = gumbel_rows(seed, positions, size, device="cpu")
    assert torch.equal(exact_TV, expected_TV)
    assert (quick_TV - expected_TV).abs().max() < 3e-6


@pytest.mark.parametrize("vocab_size", [1, 2, 1000, 1024, 2500])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_are_sampled_as_on_a_cpu(vocab_size: int, temperature: float) -> None:
    scores_TV = random_scores(3, vocab_size)
    positions = [9, 40, 41, 12]
    sampled = samples_of(scores_TV, draw_of(temperature=temperature, positions=positions), first_row=1)
    noise_TV = gumbel_rows(SEED, [41, 42, 13], vocab_size, device="cpu")
    check_samples(sampled, scores_TV, noise_TV, temperature)
    greedy = samples_of(scores_TV, draw_of())
    check_samples(greedy, scores_TV, None, 1.0)
    assert torch.equal(greedy.bests[:-SPARE], scores_TV.max(1).values)


def test_ties_go_to_the_lowest_token() -> None:
    scores_TV = torch.full((3, 2500), -1.0)
    scores_TV[0, [7, 1500, 2400]] = 2.0
    scores_TV[1, [1500, 1501]] = 2.0
    scores_TV[2] = -0.0
    scores_TV[2, 5:] = 0.0
    sampled = samples_of(scores_TV, draw_of())
    assert sampled.tokens[:-SPARE].tolist() == [7, 1500, 0]
    assert torch.equal(sampled.bests, sampled.seconds)
    found = topk_of(scores_TV, draw_of(), num_children=3, vocab_size=2500)
    assert found.tokens[:-SPARE].tolist() == [[7, 1500, 2400], [1500, 1501, 0], [0, 1, 2]]


@pytest.mark.parametrize("positions", [None, [3, 4, 5, 6]])
def test_scores_that_give_no_token_are_seen_in_bests(positions: list[int] | None) -> None:
    scores_TV = random_scores(4, 2500)
    scores_TV[0, 1900] = torch.nan
    scores_TV[1, 2] = torch.inf
    scores_TV[2] = -torch.inf
    scores_TV[3, 1:] = -torch.inf
    sampled = samples_of(scores_TV, draw_of(positions=positions))
    assert sampled.bests[0].isnan()
    assert sampled.bests[1:3].tolist() == [torch.inf, -torch.inf]
    assert sampled.bests[3].isfinite()
    assert sampled.seconds[3] == -torch.inf
    negative_nan = torch.tensor([-0x400000], dtype=torch.int32).view(torch.float32)
    scores_TV[3, 9] = negative_nan
    assert samples_of(scores_TV, draw_of()).bests[3].isnan()


@pytest.mark.parametrize(("vocab_size", "num_children"), [(2500, 4), (2500, 16), (1024, 1), (3, 3)])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_topk_is_that_of_a_cpu(vocab_size: int, num_children: int, temperature: float) -> None:
    scores_TV = random_scores(2, vocab_size + 20)
    scores_TV[:, vocab_size:] = 50.0  # tokens that the target does not know
    draw = draw_of(temperature=temperature, positions=[0, 77])
    found = topk_of(scores_TV, draw, num_children=num_children, vocab_size=vocab_size)
    noise_TV = gumbel_rows(SEED, [1, 78], vocab_size, device="cpu")
    tokens, log_probs = topk(scores_TV[:, :vocab_size], noise_TV, num_children, temperature=temperature)
    assert found.tokens[:-SPARE].tolist() == tokens
    torch.testing.assert_close(found.log_probs[:-SPARE], torch.tensor(log_probs), rtol=0, atol=2e-5)


@pytest.mark.parametrize(("num_columns", "num_children"), [(2500, 4), (1024, 1), (3, 3)])
@pytest.mark.parametrize("positions", [None, [0, 77]])
def test_the_topk_of_a_part_of_the_vocabulary_has_the_targets_tokens_and_their_noise(
    num_columns: int, num_children: int, positions: list[int] | None
) -> None:
    scores_TW = random_scores(2, num_columns)
    column_ids = torch.arange(7, 7 + 5 * num_columns, 5, dtype=torch.int32)
    draw = draw_of(positions=positions)._replace(column_ids=column_ids)
    found = topk_of(scores_TW, draw, num_children=num_children, vocab_size=num_columns)
    noise_TV = None if positions is None else gumbel_rows(SEED, [1, 78], 7 + 5 * num_columns, device="cpu")
    tokens, log_probs = topk(scores_TW, noise_TV, num_children, column_ids=column_ids)
    assert found.tokens[:-SPARE].tolist() == tokens
    torch.testing.assert_close(found.log_probs[:-SPARE], torch.tensor(log_probs), rtol=0, atol=2e-5)


def test_nan_is_seen_in_a_topk() -> None:
    scores_TV = random_scores(1, 2500)
    scores_TV[0, 2400] = torch.nan
    found = topk_of(scores_TV, draw_of(), num_children=2, vocab_size=2500)
    assert found.log_probs[0].isnan().all()
