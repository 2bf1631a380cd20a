"""Keys and values of the committed text and of the live draft tree.

Legend: L layers, S slots, K key/value heads, D head size. Keys are stored rotated: a row's position does not change
when it moves to another slot.
"""

from collections.abc import Sequence

import torch

from forerun.backends.cpu.slots import can_move, move_slots
from forerun.core.model_spec import ModelSpec
from forerun.model.slots import SlotTable
from forerun.runtime.inference import inference


class TreeCache:
    """A prefix in order, and behind it tree rows that a commit keeps or forgets.

    The forward pass writes rows into slots it was given; the decode loop alone reserves, commits and truncates.
    Source: SwiftSpec, arXiv 2506.11309, "evolving tree cache".
    """

    def __init__(self, spec: ModelSpec, capacity: int, *, dtype: torch.dtype, device: str) -> None:
        shape = (2, spec.num_layers, capacity, spec.num_kv_heads, spec.head_dim)
        self.storage_2LSKD = torch.zeros(shape, dtype=dtype, device=device)
        self.keys_LSKD, self.values_LSKD = self.storage_2LSKD[0], self.storage_2LSKD[1]
        self._slots, self._moves_natively = SlotTable(capacity), can_move(self.storage_2LSKD)

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
        if self._moves_natively:
            move_slots(self.storage_2LSKD, sources[num_in_place:], start + num_in_place)
            return
        with inference():
            moved = torch.tensor(sources[num_in_place:], device=self.storage_2LSKD.device)
            self.storage_2LSKD[:, :, start + num_in_place : start + len(sources)] = self.storage_2LSKD.index_select(
                2, moved
            )
