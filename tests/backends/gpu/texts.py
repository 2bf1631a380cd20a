"""Rows over a cache of random keys and values, and their attention by either kernel and by definition.

Legend: T rows, N nodes of a tree, S slots, K key/value heads, Q query heads, D head size.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from forerun.backends.gpu.passes.attention import AttentionWorkspace, text_attention, tree_attention
from forerun.backends.gpu.row_table import IS_CAUSAL, NUM_ROWS, PREFIX_LEN, TREE_STRIDE, RowTable
from forerun.backends.gpu.shared_memory import SPLIT
from forerun.backends.torch import reference_ops as reference

TOLERANCES = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
POISON = -77.0
SPARE_ROWS = 2  # that nobody may write
SPARE_SPLITS = 3  # that no row has


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
        window: int = 0,
        has_sinks: bool = False,
    ) -> None:
        self.texts = texts
        self.q_TQD = q_TQD
        self.prefix_len = prefix_len
        self.is_causal = is_causal
        self.window = window
        self.written_2SKD = cache_2SKD
        self.has_sinks = has_sinks
        self.sinks_Q = random_tensor(q_TQD.shape[1], dtype=q_TQD.dtype, seed=7) if has_sinks else None
        first = max(0, prefix_len - window) if window else 0  # What precedes all windows may be anything.
        seen = sorted({slot for text in texts for slot in text[first:]})
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
        window: int = 0,
        has_sinks: bool = False,
    ) -> "Texts":
        """The last rows of a tree whose nodes lie behind the prefix; the others came in earlier passes."""
        paths: list[list[int]] = []
        for node, parent in enumerate(parents):
            paths.append([*(paths[parent] if parent >= 0 else []), prefix_len + node])
        texts = [[*range(prefix_len), *path] for path in paths[len(parents) - num_rows :]]
        q_TQD = random_tensor(num_rows, num_kv_heads * group, head_dim, dtype=dtype, seed=seed)
        size = (2, prefix_len + len(parents) + 3, num_kv_heads, head_dim)
        cache_2SKD = random_tensor(*size, dtype=dtype, seed=seed + 1)
        return cls(texts, q_TQD, cache_2SKD, prefix_len=prefix_len, window=window, has_sinks=has_sinks)

    def only(self, row: int) -> "Texts":
        rows = slice(row, row + 1)
        return Texts(
            self.texts[rows], self.q_TQD[rows], self.written_2SKD, prefix_len=self.prefix_len, window=self.window,
            has_sinks=self.has_sinks,
        )  # fmt: skip

    def contiguous(self, row: int, *, num_rows: int) -> "Texts":
        """The last positions of a row's text as a text of its own: that row is the last one."""
        slots = self.texts[row]
        q_TQD = random_tensor(num_rows, *self.q_TQD.shape[1:], dtype=self.q_TQD.dtype, seed=99)
        q_TQD[-1] = self.q_TQD[row]
        texts = [range(end) for end in range(len(slots) - num_rows + 1, len(slots) + 1)]
        return Texts(
            texts, q_TQD, self.written_2SKD[:, slots], prefix_len=len(slots) - num_rows, is_causal=True,
            window=self.window, has_sinks=self.has_sinks,
        )  # fmt: skip

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

    def workspace(self) -> AttentionWorkspace:
        """Room for all splits, full of NaN."""
        num_heads, head_dim = self.q_TQD.shape[1:]
        workspace = AttentionWorkspace.for_heads(
            max_rows=len(self.texts), num_heads=num_heads, head_dim=head_dim, device="cpu",
            max_splits=max(-(-len(text) // SPLIT) for text in self.texts) + SPARE_SPLITS,
        )  # fmt: skip
        for parts in (workspace.maxima, workspace.totals, workspace.mixes):
            parts.fill_(float("nan"))
        return workspace

    def by_tree_attention(
        self, *, num_splits: int | None = None, is_settled: bool = False, workspace: AttentionWorkspace | None = None
    ) -> Tensor:
        mixed = self._poisoned()
        workspace = workspace or self.workspace()
        tree_attention(
            self.q_TQD.flatten(1), *self.cache_2SKD, mixed, self.table(), num_rows=len(self.texts),
            num_heads=self.q_TQD.shape[1], num_splits=self.prefix_len // SPLIT if num_splits is None else num_splits,
            workspace=workspace, overlaps=is_settled, is_settled=is_settled, window=self.window, sinks_Q=self.sinks_Q,
        )  # fmt: skip
        assert not workspace.counters.any()
        return self._checked(mixed)

    def by_text_attention(self) -> Tensor:
        mixed = self._poisoned()
        text_attention(
            self.q_TQD.flatten(1), *self.cache_2SKD, mixed, self.table(), num_rows=len(self.texts),
            num_heads=self.q_TQD.shape[1], overlaps=False, window=self.window, sinks_Q=self.sinks_Q,
        )  # fmt: skip
        return self._checked(mixed)

    def by_definition(self) -> Tensor:
        slots = [torch.tensor(list(text[-self.window :]), dtype=torch.int64) for text in self.texts]
        sinks_Q = None if self.sinks_Q is None else self.sinks_Q.double()
        return reference.tree_attention(self.q_TQD.double(), *self.cache_2SKD.double(), slots, sinks_Q)

    def _poisoned(self) -> Tensor:
        num_heads, head_dim = self.q_TQD.shape[1:]
        return torch.full((len(self.texts) + SPARE_ROWS, num_heads * head_dim), POISON, dtype=self.q_TQD.dtype)

    def _checked(self, mixed: Tensor) -> Tensor:
        assert mixed[-SPARE_ROWS:].eq(POISON).all()
        return mixed[:-SPARE_ROWS]


def assert_close(actual: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCES[actual.dtype]
    torch.testing.assert_close(actual.double(), expected, atol=tolerance, rtol=tolerance)


def require_same_everywhere(texts: Texts, rows: Sequence[int]) -> None:
    """Both kernels attend as by definition, and these rows have the same bits alone, among others, and one by one."""
    among_siblings = texts.by_tree_attention()
    assert_close(among_siblings, texts.by_definition())
    assert texts.by_text_attention().equal(among_siblings)
    for row in rows:
        assert texts.only(row).by_tree_attention()[0].equal(among_siblings[row])
        assert texts.contiguous(row, num_rows=3).by_tree_attention()[-1].equal(among_siblings[row])
        assert texts.contiguous(row, num_rows=33).by_text_attention()[-1].equal(among_siblings[row])
