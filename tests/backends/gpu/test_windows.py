"""Attention with a sliding window against plain float64 arithmetic, and the bits of a row wherever its text lies."""

import random

import pytest
import torch
from triton.runtime import interpreter

from tests.backends.gpu.texts import Texts, assert_close, require_same_everywhere
from tests.backends.torch.ops import random_parents
from tests.marks import rest_slow


@pytest.mark.parametrize("window", [1, 3, 128, 200, 1000])
@pytest.mark.parametrize("prefix_len", rest_slow([130, 400, 5], 2))
def test_rows_of_a_tree_see_the_last_positions_of_their_paths(prefix_len: int, window: int) -> None:
    parents = random_parents(random.Random(prefix_len + window), 8)
    texts = Texts.of_tree(parents, num_rows=6, prefix_len=prefix_len, group=3, window=window)
    expected = texts.by_definition()
    assert_close(texts.by_tree_attention(), expected)
    assert_close(texts.by_text_attention(), expected)


@pytest.mark.parametrize("num_rows", [1, 14, 34])
def test_rows_of_a_text_see_the_last_positions(num_rows: int) -> None:
    chain = Texts.of_tree([-1, *range(num_rows)], num_rows=1, prefix_len=300, window=140)
    texts = chain.contiguous(0, num_rows=num_rows)
    expected = texts.by_definition()
    assert_close(texts.by_tree_attention(), expected)
    assert_close(texts.by_text_attention(), expected)


def test_spare_rows_see_nothing_beside_others() -> None:
    texts = Texts.of_tree([-1, 0, 0, 1], num_rows=4, prefix_len=260, window=20)
    texts.texts[2:] = [[], []]
    expected = texts.by_definition().nan_to_num()
    assert_close(texts.by_tree_attention(), expected)
    assert_close(texts.by_text_attention(), expected)


# A stretch is 16 splits, 2048 positions: windows within one, into the one before, and over three; and the last window
# is shorter than a row's own chain.
@pytest.mark.parametrize(
    ("prefix_len", "num_before", "window", "dtype"),
    [
        (2100, 0, 30, torch.float32),
        (1900, 400, 100, torch.float32),
        pytest.param(2100, 0, 300, torch.bfloat16, marks=pytest.mark.slow),
        pytest.param(4200, 0, 2500, torch.float32, marks=pytest.mark.slow),
        pytest.param(4200, 0, 4000, torch.float16, marks=pytest.mark.slow),
    ],
)
def test_a_row_has_the_same_bits_wherever_its_window_lies(
    prefix_len: int, num_before: int, window: int, dtype: torch.dtype
) -> None:
    parents = [-1, *range(num_before), *(num_before + parent for parent in (0, 0, 1, 2, 2, 4, 6))]
    texts = Texts.of_tree(parents, num_rows=6, prefix_len=prefix_len, group=3, dtype=dtype, window=window)
    require_same_everywhere(texts, rows=(1, 5))


@pytest.mark.parametrize("window", rest_slow([300, 2200], 1))
def test_whichever_program_is_the_last_one_the_bits_are_the_same(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = Texts.of_tree([-1, *range(40), 39, 38, 3], num_rows=9, prefix_len=4070, group=7, window=window)
    texts.texts[2:3] = [[]]
    in_order = texts.by_tree_attention()
    assert_close(in_order, texts.by_definition().nan_to_num())
    builder = interpreter.interpreter_builder
    place = builder.set_grid_idx

    def place_shuffled(x: int, y: int, z: int) -> None:
        num_units = builder.grid_dim[1]
        place(x, random.Random(1).sample(range(num_units), num_units)[y], z)

    monkeypatch.setattr(builder, "set_grid_idx", place_shuffled)
    assert texts.by_tree_attention().equal(in_order)
