"""Attention with sinks against plain float64 arithmetic, and the bits of a row wherever its text lies."""

import random

import pytest
import torch

from tests.backends.gpu.texts import Texts, assert_close, require_same_everywhere
from tests.backends.torch.ops import random_parents


@pytest.mark.parametrize(("prefix_len", "window"), [(260, 0), (5, 3), (300, 140)])
def test_a_sink_takes_a_share_of_each_head(prefix_len: int, window: int) -> None:
    parents = random_parents(random.Random(prefix_len), 8)
    texts = Texts.of_tree(
        parents, num_rows=6, prefix_len=prefix_len, num_kv_heads=2, group=3, window=window, has_sinks=True
    )
    expected = texts.by_definition()
    assert_close(texts.by_tree_attention(), expected)
    assert_close(texts.by_text_attention(), expected)


def test_rows_of_a_text_have_their_sinks() -> None:
    texts = Texts.of_tree([-1, *range(34)], num_rows=1, prefix_len=200, has_sinks=True).contiguous(0, num_rows=34)
    expected = texts.by_definition()
    assert_close(texts.by_tree_attention(), expected)
    assert_close(texts.by_text_attention(), expected)


def test_a_row_that_sees_nothing_stays_zero_beside_a_sink() -> None:
    texts = Texts.of_tree([-1, 0, 0, 1], num_rows=4, prefix_len=260, has_sinks=True)
    texts.texts[2:] = [[], []]
    for mixed in (texts.by_tree_attention(), texts.by_text_attention()):
        assert mixed[2:].eq(0.0).all()
        assert mixed[:2].isfinite().all()


@pytest.mark.parametrize(
    ("prefix_len", "window", "dtype"),
    [
        (250, 0, torch.bfloat16),
        (2100, 300, torch.float16),
        pytest.param(2047, 0, torch.float32, marks=pytest.mark.slow),
    ],
)
def test_a_row_has_the_same_bits_wherever_its_text_lies(prefix_len: int, window: int, dtype: torch.dtype) -> None:
    texts = Texts.of_tree(
        [-1, 0, 0, 1, 2, 2, 4, 6],
        num_rows=6,
        prefix_len=prefix_len,
        group=3,
        dtype=dtype,
        window=window,
        has_sinks=True,
    )
    require_same_everywhere(texts, rows=(1, 5))
