"""Log-probabilities of tokens against the textbook's formula."""

import math

import pytest
import torch

from forerun.sampling.logprobs import token_logprobs
from forerun.sampling.sample import sample

LOGITS = torch.tensor([[1.0, 3.0, 2.0, -math.inf], [0.0, 0.0, 5.0, 4.0]])


def by_hand(row: list[float], token: int) -> float:
    return row[token] - math.log(sum(math.exp(score) for score in row))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_each_row_is_the_formula_of_its_own_scores(dtype: torch.dtype) -> None:
    first, second = token_logprobs(LOGITS.to(dtype), range(2), (0, 3), 2)
    rows = LOGITS.tolist()
    assert first.token_id == 0
    assert first.logprob == pytest.approx(by_hand(rows[0], 0), rel=1e-6)
    assert [token for token, _ in first.top] == [1, 2]
    assert [value for _, value in first.top] == pytest.approx([by_hand(rows[0], 1), by_hand(rows[0], 2)], rel=1e-6)
    assert second.logprob == second.top[1][1] == pytest.approx(by_hand(rows[1], 3), rel=1e-6)


@pytest.mark.parametrize(("asked", "given"), [(0, 0), (1, 1), (20, 4)])
def test_no_more_alternatives_than_asked_for_or_than_there_are(asked: int, given: int) -> None:
    assert [len(item.top) for item in token_logprobs(LOGITS, range(2), (1, 2), asked)] == [given, given]


def test_a_row_alone_has_the_same_bits() -> None:
    logits = torch.randn(40, 5000, generator=torch.Generator().manual_seed(1)) * 4
    together = token_logprobs(logits, range(40), range(40), 20)
    alone = [token_logprobs(logits, (row,), (row,), 20)[0] for row in range(40)]
    assert list(together) == alone


@pytest.mark.parametrize("vocab_size", [8, 50, 5000])
@pytest.mark.parametrize("num_top", [1, 2, 5])
def test_of_equally_likely_tokens_the_lowest_ids_are_named_and_come_first(vocab_size: int, num_top: int) -> None:
    """As the choice itself is made, so that a greedy token comes first; ties are common in bfloat16."""
    logits = torch.zeros(3, vocab_size, dtype=torch.bfloat16)
    logits[1, vocab_size // 2 :] = 1.0
    logits[2, [3, 7]] = torch.tensor([1.0, 2.0], dtype=torch.bfloat16)
    chosen = sample(logits, None).token_ids
    found = token_logprobs(logits, range(len(chosen)), chosen, num_top)
    expected = [list(range(num_top)), [vocab_size // 2 + place for place in range(num_top)], [7, 3, 0, 1, 2][:num_top]]
    if vocab_size == 8:
        expected[1] = [4, 5, 6, 7, 0][:num_top]
    assert [[token for token, _ in item.top] for item in found] == expected
    assert [item.top[0] for item in found] == [(item.token_id, item.logprob) for item in found]
    for rank, token in enumerate(expected[1]):
        assert token_logprobs(logits, (1,), (token,), 0)[0].num_likelier == rank


def test_what_rounding_makes_equal_is_in_the_order_of_the_scores() -> None:
    logits = torch.zeros(1, 5000)
    logits[0, 4000] = 1e-8
    (item,) = token_logprobs(logits, (0,), sample(logits, None).token_ids, 2)
    assert [token for token, _ in item.top] == [4000, 0]
    assert item.top[0][1] == item.top[1][1]
