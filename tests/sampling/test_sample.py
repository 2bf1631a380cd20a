"""The choice from a row of scores, and the rows that nothing may be chosen from."""

import pytest
import torch

from forerun.core.errors import NumericalError
from forerun.sampling.noise import KeyedNoise
from forerun.sampling.sample import sample, topk

NAN = float("nan")
INF = float("inf")


@pytest.mark.parametrize(
    "row",
    [[NAN] * 4, [1.0, NAN, 0.0, 2.0], [NAN, 1.0, 2.0, 3.0], [1.0, INF, 0.0, 0.0], [-INF] * 4, [NAN, -INF, -INF, -INF]],
)
@pytest.mark.parametrize("is_sampled", [False, True])
@pytest.mark.parametrize("place", [0, 2])
def test_a_row_with_nan_or_without_any_token_is_an_error(row: list[float], is_sampled: bool, place: int) -> None:
    scores = torch.zeros(3, 4)
    scores[place] = torch.tensor(row)
    noise = KeyedNoise(1, 4).rows([5, 6, 7]) if is_sampled else None
    with pytest.raises(NumericalError, match=f"row {place}"):
        sample(scores, noise)


@pytest.mark.parametrize("vocab_size", [1, 2, 5, 127, 128, 129, 1000])
def test_a_choice_is_a_token_whatever_is_masked(vocab_size: int) -> None:
    """A choice beyond the vocabulary came from an empty last tile of a kernel elsewhere."""
    noise = KeyedNoise(3, vocab_size)
    for alive in {0, vocab_size // 2, vocab_size - 1}:
        scores = torch.full((2, vocab_size), -INF)
        scores[:, alive] = -1e30
        assert sample(scores, None).token_ids == [alive, alive]
        assert sample(scores, noise.rows([1, 2])).token_ids == [alive, alive]


def test_margins_are_leads_over_the_second_score() -> None:
    choices = sample(torch.tensor([[1.0, 4.0, 3.5], [2.0, 2.0, -INF]]), None)
    assert choices.token_ids == [1, 0]
    assert choices.margins == [0.5, 0.0]


@pytest.mark.parametrize("is_sampled", [False, True])
def test_children_are_the_likeliest_tokens_under_the_targets_own_noise(is_sampled: bool) -> None:
    scores = torch.randn(5, 40, generator=torch.Generator().manual_seed(1))
    noise = KeyedNoise(1, 40).rows(range(5)) if is_sampled else None
    token_ids, log_probs = topk(scores, noise, 4)
    totals = scores if noise is None else scores + noise
    for row, (tokens, values) in enumerate(zip(token_ids, log_probs, strict=True)):
        assert tokens == sorted(range(40), key=lambda token: -totals[row, token].item())[:4]
        assert values == pytest.approx(totals[row].log_softmax(-1)[tokens].tolist(), abs=1e-5)
    assert [tokens[0] for tokens in token_ids] == sample(scores, noise).token_ids
