"""Attention over split texts against plain float64 arithmetic, and the bits of a row wherever its text lies."""

import random

import pytest
import torch
from triton.runtime import interpreter

from forerun.backends.gpu import kernel_parts
from tests.backends.gpu.texts import Texts, assert_close, require_same_everywhere
from tests.backends.torch.ops import random_parents
from tests.marks import in_turn, rest_slow


@pytest.mark.parametrize(
    ("prefix_len", "dtype"),
    [
        *((prefix_len, torch.float32) for prefix_len in (0, 5, 127, 128, 129, 260)),
        *((prefix_len, dtype) for prefix_len in (100, 260) for dtype in (torch.float16, torch.bfloat16)),
    ],
)
def test_rows_of_a_tree_see_the_prefix_and_their_ancestors(prefix_len: int, dtype: torch.dtype) -> None:
    parents = random_parents(random.Random(prefix_len), 6)
    texts = Texts.of_tree(parents, num_rows=4, prefix_len=prefix_len, dtype=dtype)
    expected = texts.by_definition()
    assert_close(texts.by_tree_attention(), expected)
    assert_close(texts.by_text_attention(), expected)


@pytest.mark.parametrize(
    ("num_kv_heads", "group", "num_rows"), [(1, 1, 3), (2, 4, 3), (1, 7, 5), (1, 20, 2), (1, 1, 34)]
)
def test_query_heads_share_key_heads(num_kv_heads: int, group: int, num_rows: int) -> None:
    parents = random_parents(random.Random(group), num_rows)
    texts = Texts.of_tree(parents, num_rows=num_rows, prefix_len=130, num_kv_heads=num_kv_heads, group=group)
    expected = texts.by_definition()
    assert_close(texts.by_tree_attention(), expected)
    assert_close(texts.by_text_attention(), expected)


def test_heads_of_a_slot_need_not_lie_side_by_side() -> None:
    texts = Texts.of_tree([-1, 0], num_rows=2, prefix_len=130, num_kv_heads=3)
    expected = texts.by_tree_attention()
    texts.cache_2SKD = texts.cache_2SKD.transpose(1, 2).contiguous().transpose(1, 2)
    assert texts.by_tree_attention().equal(expected)


@pytest.mark.parametrize(
    ("prefix_len", "window"),
    [(135, 0), *(pytest.param(280, window, marks=pytest.mark.slow) for window in (0, 140))],
)
def test_wide_heads_are_attended_to_in_pieces(prefix_len: int, window: int) -> None:
    parents = [-1, 0, 0, 1, 2, 2, 4]
    texts = Texts.of_tree(
        parents, num_rows=5, prefix_len=prefix_len, num_kv_heads=1, group=3, head_dim=512, dtype=torch.bfloat16,
        window=window,
    )  # fmt: skip
    require_same_everywhere(texts, rows=(4,) if prefix_len == 135 else (1, 4))


def test_a_row_may_end_within_the_prefix_or_see_nothing() -> None:
    texts = Texts.of_tree([-1, 0, 0, 1], num_rows=4, prefix_len=260)
    texts.texts = [texts.texts[0], [0], [], range(129)]
    expected = texts.by_definition().nan_to_num()
    assert_close(texts.by_tree_attention(), expected)
    assert_close(texts.by_text_attention(), expected)


@pytest.mark.parametrize("num_rows", [1, 3, 14])
def test_rows_of_a_text_see_what_lies_before_them(num_rows: int) -> None:
    texts = Texts.of_tree([-1, *range(num_rows)], num_rows=1, prefix_len=115).contiguous(0, num_rows=num_rows)
    expected = texts.by_definition()
    assert_close(texts.by_tree_attention(), expected)
    assert_close(texts.by_text_attention(), expected)


@pytest.mark.parametrize(
    ("prefix_len", "dtype"),
    [
        (250, torch.float32),
        (128, torch.bfloat16),
        pytest.param(100, torch.float32, marks=pytest.mark.slow),
        pytest.param(127, torch.float16, marks=pytest.mark.slow),
        pytest.param(250, torch.bfloat16, marks=pytest.mark.slow),
    ],
)
def test_a_row_has_the_same_bits_wherever_its_text_lies(prefix_len: int, dtype: torch.dtype) -> None:
    parents = [-1, 0, 0, 1, 2, 2, 4, 6]
    texts = Texts.of_tree(parents, num_rows=6, prefix_len=prefix_len, num_kv_heads=1, group=3, dtype=dtype)
    among_siblings = texts.by_tree_attention()
    assert texts.by_text_attention().equal(among_siblings)
    for row in (1, 5):
        assert texts.only(row).by_tree_attention()[0].equal(among_siblings[row])
        assert texts.contiguous(row, num_rows=1).by_tree_attention()[0].equal(among_siblings[row])
        assert texts.contiguous(row, num_rows=3).by_tree_attention()[-1].equal(among_siblings[row])
        assert texts.contiguous(row, num_rows=33).by_text_attention()[-1].equal(among_siblings[row])


# A stretch is 16 splits, 2048 positions: rows on both sides of its end; rows that begin one; one with a chain that goes
# from one stretch into the next; three stretches.
@pytest.mark.parametrize(
    ("prefix_len", "num_before", "dtype"),
    [
        (1900, 400, torch.float32),
        pytest.param(4160, 0, torch.bfloat16, marks=pytest.mark.slow),
        pytest.param(2047, 0, torch.float16, marks=pytest.mark.slow),
        pytest.param(2048, 0, torch.float32, marks=pytest.mark.slow),
    ],
)
def test_long_texts_are_joined_in_the_same_stretches_everywhere(
    prefix_len: int, num_before: int, dtype: torch.dtype
) -> None:
    parents = [-1, *range(num_before), *(num_before + parent for parent in (0, 0, 1, 2, 2, 4, 6))]
    texts = Texts.of_tree(parents, num_rows=6, prefix_len=prefix_len, num_kv_heads=1, group=3, dtype=dtype)
    require_same_everywhere(texts, rows=(1, 5))


@pytest.mark.parametrize("seed", rest_slow(range(3), 1))
def test_whichever_program_is_the_last_one_the_bits_are_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = Texts.of_tree([-1, *range(40), 39, 38, 3], num_rows=9, prefix_len=4070, group=7)
    texts.texts[2:4] = [range(100), []]
    in_order = texts.by_tree_attention()
    builder = interpreter.interpreter_builder
    place = builder.set_grid_idx

    def place_shuffled(x: int, y: int, z: int) -> None:
        num_units = builder.grid_dim[1]
        place(x, random.Random(seed).sample(range(num_units), num_units)[y], z)

    monkeypatch.setattr(builder, "set_grid_idx", place_shuffled)
    assert texts.by_tree_attention().equal(in_order)


@pytest.mark.parametrize(("length", "has_stretches"), [(2048, False), (2049, True)])
def test_only_texts_of_several_stretches_take_a_second_step(length: int, has_stretches: bool) -> None:
    texts = Texts.of_tree([-1], num_rows=1, prefix_len=length - 1)
    workspace = texts.workspace()
    texts.by_tree_attention(workspace=workspace)
    assert workspace.mixes[:, workspace.max_splits :].isnan().all() != has_stretches


@pytest.mark.parametrize("prefix_len", [100, 250])
def test_reading_before_the_kernel_before_has_ended_changes_nothing(
    prefix_len: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = Texts.of_tree([-1, *range(40), 39, 39], num_rows=3, prefix_len=prefix_len)
    plain = texts.by_tree_attention()
    monkeypatch.setattr(kernel_parts, "gdc_wait", lambda: None)
    monkeypatch.setattr(kernel_parts, "gdc_launch_dependents", lambda: None)
    assert texts.by_tree_attention(is_settled=True).equal(plain)


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_what_is_no_number_shows() -> None:
    texts = Texts.of_tree([-1, 0, 0], num_rows=3, prefix_len=130)
    texts.cache_2SKD[:, texts.texts[1][-1]] = float("nan")
    for mixed in (texts.by_tree_attention(), texts.by_text_attention()):
        assert mixed.isnan().any(1).tolist() == [False, True, False]


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize(  # the rows end in one split, in two, in two stretches
    ("value", "length"), in_turn([float("nan"), float("inf")], [120, 134, 2055])
)
def test_rows_of_a_text_do_not_depend_on_later_ones(length: int, value: float) -> None:
    texts = Texts.of_tree([-1], num_rows=1, prefix_len=length - 1).contiguous(0, num_rows=14)
    clean = texts.by_text_attention()
    texts.cache_2SKD[:, length - 5 :, :, ::2] = value
    mixed = texts.by_text_attention()
    assert mixed[:9].equal(clean[:9])
    assert not mixed[9:].isfinite().all(1).any()
    torch.testing.assert_close(mixed, texts.by_tree_attention(), rtol=0, atol=0, equal_nan=True)
