"""Keys and values of the committed text and of the live draft tree.

Legend: L layers, S slots, K key/value heads, D head size. Keys are stored rotated: a row's position does not change
when it moves to another slot.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from forerun.core.model_spec import ModelSpec
from forerun.model.slots import SlotTable
from forerun.runtime.inference import inference

MoveSlots: TypeAlias = Callable[[Tensor, Sequence[int], int], None]  # see ModelBackend.move_slots


class TreeCache:
    """A prefix in order, and behind it tree rows that a commit keeps or forgets.

    The forward pass writes rows into slots it was given; the decode loop alone reserves, commits and truncates.
    Source: SwiftSpec, arXiv 2506.11309, "evolving tree cache".
    """

    def __init__(
        self, spec: ModelSpec, capacity: int, *, dtype: torch.dtype, device: str, move_slots: MoveSlots | None = None
    ) -> None:
        shape = (2, spec.num_layers, capacity, spec.num_kv_heads, spec.head_dim)
        self.storage_2LSKD = torch.zeros(shape, dtype=dtype, device=device)
        self.keys_LSKD, self.values_LSKD = self.storage_2LSKD[0], self.storage_2LSKD[1]
        self._slots, self._move_slots = SlotTable(capacity), move_slots or move_slots_by_index

    @property
    def capacity(self) -> int:
        return self._slots.capacity

    @property
    def committed_len(self) -> int:
        return self._slots.committed_len

    @property
    def num_tree(self) -> int:
        return self._slots.num_tree

    def can_reserve(self, num_rows: int) -> bool:
        return self._slots.can_reserve(num_rows)

    def reserve(self, num_rows: int) -> int:
        """Make room for tree rows; return the slot of the first. Row r of the tree lies at committed_len + r."""
        return self._slots.reserve(num_rows)

    def commit(self, path: Sequence[int]) -> None:
        """Append the tree rows of `path` to the committed text, in order; forget all other rows."""
        self.keep_subtree(path, num_committed=len(path))

    def keep_subtree(self, rows: Sequence[int], *, num_committed: int = 0) -> None:
        """Keep `rows` as the new tree, the first `num_committed` of them as committed text; forget the others."""
        start = self._slots.committed_len
        self._move(self._slots.keep(rows, num_committed), start)

    def adopt(self, num_tokens: int) -> None:
        """Commit so many slots behind the text: the device has put their rows there in order. Forget all other rows."""
        self._slots.adopt(num_tokens)

    def truncate(self, length: int) -> None:
        """Forget the tree and all committed tokens from `length` on."""
        self._slots.truncate(length)

    def _move(self, sources: list[int], start: int) -> None:
        """Copy slots `sources` to start, start + 1, ... in all layers, as if all were read before any is written."""
        num_in_place = 0
        while num_in_place < len(sources) and sources[num_in_place] == start + num_in_place:
            num_in_place += 1
        if num_in_place == len(sources):
            return
        self._move_slots(self.storage_2LSKD, sources[num_in_place:], start + num_in_place)


def move_slots_by_index(storage_2LSKD: Tensor, sources: Sequence[int], start: int) -> None:
    """As `ModelBackend.move_slots`, with torch's calls."""
    with inference():
        slots = torch.tensor(sources, device=storage_2LSKD.device)
        storage_2LSKD[:, :, start : start + len(sources)] = storage_2LSKD.index_select(2, slots)
