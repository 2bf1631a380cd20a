"""Log-probabilities of tokens against the textbook's formula."""

import math

import pytest
import torch

from forerun.sampling.logprobs import token_logprobs

LOGITS = torch.tensor([[1.0, 3.0, 2.0, -math.inf], [0.0, 0.0, 5.0, 4.0]])


def by_hand(row: list[float], token: int) -> float:
    return row[token] - math.log(sum(math.exp(score) for score in row))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_each_row_is_the_formula_of_its_own_scores(dtype: torch.dtype) -> None:
    first, second = token_logprobs(LOGITS.to(dtype), (0, 3), 2)
    rows = LOGITS.tolist()
    assert first.token_id == 0
    assert first.logprob == pytest.approx(by_hand(rows[0], 0), rel=1e-6)
    assert [token for token, _ in first.top] == [1, 2]
    assert [value for _, value in first.top] == pytest.approx([by_hand(rows[0], 1), by_hand(rows[0], 2)], rel=1e-6)
    assert second.logprob == second.top[1][1] == pytest.approx(by_hand(rows[1], 3), rel=1e-6)


@pytest.mark.parametrize(("asked", "given"), [(0, 0), (1, 1), (20, 4)])
def test_no_more_alternatives_than_asked_for_or_than_there_are(asked: int, given: int) -> None:
    assert [len(item.top) for item in token_logprobs(LOGITS, (1, 2), asked)] == [given, given]


def test_a_row_alone_has_the_same_bits() -> None:
    logits = torch.randn(16, 5000, generator=torch.Generator().manual_seed(1)) * 4
    together = token_logprobs(logits, range(16), 20)
    alone = [token_logprobs(logits[row : row + 1], (row,), 20)[0] for row in range(16)]
    assert list(together) == alone
