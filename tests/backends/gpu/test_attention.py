"""Attention over split texts against plain float64 arithmetic, and the bits of a row wherever its text lies.

Legend: T rows, N nodes of a tree, S slots, K key/value heads, Q query heads, D head size.
"""

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from forerun.backends.gpu import language
from forerun.backends.gpu.passes.attention import AttentionWorkspace, text_attention, tree_attention
from forerun.backends.gpu.row_table import IS_CAUSAL, NUM_ROWS, PREFIX_LEN, TREE_STRIDE, RowTable
from forerun.backends.torch.reference import attention as reference
from tests.backends.torch.ops import random_parents

TOLERANCES = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
POISON = -77.0
SPARE_ROWS = 2  # that nobody may write
MAX_SPLITS = 6


def random_tensor(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


class Texts:
    """Rows and the slots of their texts, over a cache in which all other slots hold NaN."""

    def __init__(
        self,
        texts: Sequence[Sequence[int]],
        q_TQD: Tensor,
        cache_2SKD: Tensor,
        *,
        prefix_len: int,
        is_causal: bool = False,
    ) -> None:
        self.texts, self.q_TQD, self.prefix_len, self.is_causal = texts, q_TQD, prefix_len, is_causal
        seen = sorted({slot for text in texts for slot in text})
        self.cache_2SKD = torch.full_like(cache_2SKD, float("nan"))
        self.cache_2SKD[:, seen] = cache_2SKD[:, seen]

    @classmethod
    def of_tree(
        cls,
        parents: Sequence[int],
        *,
        num_rows: int,
        prefix_len: int,
        num_kv_heads: int = 1,
        group: int = 2,
        head_dim: int = 16,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> "Texts":
        """The last rows of a tree whose nodes lie behind the prefix; the others came in earlier passes."""
        paths: list[list[int]] = []
        for node, parent in enumerate(parents):
            paths.append([*(paths[parent] if parent >= 0 else []), prefix_len + node])
        texts = [[*range(prefix_len), *path] for path in paths[len(parents) - num_rows :]]
        q_TQD = random_tensor(num_rows, num_kv_heads * group, head_dim, dtype=dtype, seed=seed)
        size = (2, prefix_len + len(parents) + 3, num_kv_heads, head_dim)
        return cls(texts, q_TQD, random_tensor(*size, dtype=dtype, seed=seed + 1), prefix_len=prefix_len)

    def only(self, row: int) -> "Texts":
        return Texts(self.texts[row : row + 1], self.q_TQD[row : row + 1], self.cache_2SKD, prefix_len=self.prefix_len)

    def contiguous(self, row: int, *, num_rows: int) -> "Texts":
        """The last positions of a row's text as a text of its own: that row is the last one."""
        slots = self.texts[row]
        q_TQD = random_tensor(num_rows, *self.q_TQD.shape[1:], dtype=self.q_TQD.dtype, seed=99)
        q_TQD[-1] = self.q_TQD[row]
        texts = [range(end) for end in range(len(slots) - num_rows + 1, len(slots) + 1)]
        return Texts(texts, q_TQD, self.cache_2SKD[:, slots], prefix_len=len(slots) - num_rows, is_causal=True)

    def table(self) -> RowTable:
        stride = max(1, *(len(text) - self.prefix_len for text in self.texts)) + 1
        num_rows = len(self.texts)
        rows = RowTable(max_rows=num_rows, max_tree_slots=num_rows * stride, num_sublayers=0, device="cpu")
        rows.tree_slots.fill_(1 << 20)  # far outside of the cache
        for place, value in ((PREFIX_LEN, self.prefix_len), (NUM_ROWS, num_rows), (TREE_STRIDE, stride)):
            rows.header[place.value] = value
        rows.header[IS_CAUSAL.value] = int(self.is_causal)
        for row, text in enumerate(self.texts):
            rows.lengths[row] = len(text)
            tree_slots = [] if self.is_causal else text[self.prefix_len :]
            rows.tree_slots[row * stride : row * stride + len(tree_slots)] = torch.tensor(tree_slots, dtype=torch.int32)
        return rows

    def by_tree_attention(self, *, num_splits: int | None = None, is_settled: bool = False) -> Tensor:
        num_heads, head_dim = self.q_TQD.shape[1:]
        workspace = AttentionWorkspace.for_heads(
            max_rows=len(self.texts), num_heads=num_heads, head_dim=head_dim, max_splits=MAX_SPLITS, device="cpu"
        )
        for parts in (workspace.maxima, workspace.totals, workspace.mixes):
            parts.fill_(float("nan"))
        mixed = self._poisoned()
        tree_attention(
            self.q_TQD.flatten(1), *self.cache_2SKD, mixed, self.table(), num_rows=len(self.texts), num_heads=num_heads,
            num_splits=self.prefix_len // 128 if num_splits is None else num_splits, workspace=workspace,
            overlaps=is_settled, is_settled=is_settled,
        )  # fmt: skip
        assert not workspace.counters.any()
        return self._checked(mixed)

    def by_text_attention(self) -> Tensor:
        mixed = self._poisoned()
        text_attention(
            self.q_TQD.flatten(1), *self.cache_2SKD, mixed, self.table(), num_rows=len(self.texts),
            num_heads=self.q_TQD.shape[1], overlaps=False,
        )  # fmt: skip
        return self._checked(mixed)

    def by_definition(self) -> Tensor:
        slots = [torch.tensor(list(text), dtype=torch.int64) for text in self.texts]
        return reference.tree_attention(self.q_TQD.double(), *self.cache_2SKD.double(), slots)

    def _poisoned(self) -> Tensor:
        num_heads, head_dim = self.q_TQD.shape[1:]
        return torch.full((len(self.texts) + SPARE_ROWS, num_heads * head_dim), POISON, dtype=self.q_TQD.dtype)

    def _checked(self, mixed: Tensor) -> Tensor:
        assert mixed[-SPARE_ROWS:].eq(POISON).all()
        return mixed[:-SPARE_ROWS]


def assert_close(actual: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCES[actual.dtype]
    torch.testing.assert_close(actual.double(), expected, atol=tolerance, rtol=tolerance)


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


@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_heads_may_be_wider(head_dim: int) -> None:
    texts = Texts.of_tree([-1, 0, 0], num_rows=3, prefix_len=140, head_dim=head_dim)
    assert_close(texts.by_tree_attention(), texts.by_definition())


def test_a_tree_may_be_several_splits_long() -> None:
    texts = Texts.of_tree([-1, *range(300), 2, 301], num_rows=4, prefix_len=100)
    assert sorted({len(text) // 128 for text in texts.texts}) == [0, 3]
    expected = texts.by_definition()
    assert_close(texts.by_tree_attention(), expected)
    assert_close(texts.by_text_attention(), expected)


def test_heads_of_a_slot_need_not_lie_side_by_side() -> None:
    texts = Texts.of_tree([-1, 0], num_rows=2, prefix_len=130, num_kv_heads=3)
    expected = texts.by_tree_attention()
    texts.cache_2SKD = texts.cache_2SKD.transpose(1, 2).contiguous().transpose(1, 2)
    assert texts.by_tree_attention().equal(expected)


def test_programs_for_splits_beyond_the_prefix_leave_nothing() -> None:
    texts = Texts.of_tree([-1, 0, 0], num_rows=3, prefix_len=200)
    assert texts.by_tree_attention(num_splits=8).equal(texts.by_tree_attention())


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
    [(100, torch.float32), (250, torch.float32), (127, torch.float16), (128, torch.bfloat16), (250, torch.bfloat16)],
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


@pytest.mark.parametrize("prefix_len", [100, 250])
def test_reading_before_the_kernel_before_has_ended_changes_nothing(
    prefix_len: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = Texts.of_tree([-1, *range(40), 39, 39], num_rows=3, prefix_len=prefix_len)
    plain = texts.by_tree_attention()
    monkeypatch.setattr(language, "gdc_wait", lambda: None)
    monkeypatch.setattr(language, "gdc_launch_dependents", lambda: None)
    assert texts.by_tree_attention(is_settled=True).equal(plain)


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_what_is_no_number_shows() -> None:
    texts = Texts.of_tree([-1, 0, 0], num_rows=3, prefix_len=130)
    texts.cache_2SKD[0, texts.texts[1][-1]] = float("nan")
    for mixed in (texts.by_tree_attention(), texts.by_text_attention()):
        assert mixed.isnan().any(1).tolist() == [False, True, False]
