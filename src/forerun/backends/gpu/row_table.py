"""The table that describes a pass's rows to the kernels: one block of int32 on the device, filled by one copy or by
kernels.

Legend: R the largest number of rows of a pass, T rows of this pass, W tree slots, E tree slots of all rows.
"""

from typing import Final, NamedTuple

import numpy as np
import torch
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from forerun.model.executor import ForwardInput

HEADER_SIZE: Final = 8
LEAST_TREE_STRIDE: Final = 32
PREFIX_LEN, FIRST_SLOT, NUM_ROWS, TREE_STRIDE, IS_CAUSAL = map(tl.constexpr, range(5))  # Places in `header`.


class RowFields(NamedTuple):
    """The parts of a row table; their addresses never change.

    A logical position is the position of a token in a row's own text: 0, 1, ... up to the row itself. Those below
    `prefix_len` are in the slots of the same number, the others in the row's tree slots.

    Args:
        header: [8] prefix_len, first_slot, num_rows, tree_stride, is_causal; the rest is spare.
        token_ids: [R]
        positions: [R] in the text, for the rotation.
        slots: [R] where keys and values go.
        lengths: [R] logical positions that a row attends to, including itself: prefix_len plus its tree slots.
        tree_slots: [E] slot of logical position prefix_len + j of row t at t * tree_stride + j. Not read if is_causal:
            then the slot of a logical position is the position.
        row_skips: [R * sublayers] 1 if a row skips a sublayer: row t, sublayer s at t * sublayers + s.
    """

    header: Tensor
    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    lengths: Tensor
    tree_slots: Tensor
    row_skips: Tensor


class RowTable:
    """The rows of one pass."""

    def __init__(self, *, max_rows: int, max_tree_slots: int, num_sublayers: int, device: str) -> None:
        sizes = (HEADER_SIZE, max_rows, max_rows, max_rows, max_rows, max_tree_slots, max_rows * num_sublayers)
        self.storage = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
        self.max_rows = max_rows
        self.max_tree_slots = max_tree_slots
        self.num_sublayers = num_sublayers
        parts: tuple[Tensor, ...] = self.storage.split(sizes)
        self.fields = RowFields(*parts)
        self.header, self.token_ids, self.positions, self.slots, self.lengths, self.tree_slots, self.row_skips = parts


class RowWriter:
    """Fills a row table from the host: one copy per pass, and a second one if rows skip sublayers."""

    def __init__(self, table: RowTable) -> None:
        self._table = table
        self._staged = np.zeros(len(table.storage) - len(table.row_skips), np.int32)
        self._tree_at = HEADER_SIZE + 4 * table.max_rows

    def write(self, inputs: ForwardInput, *, num_padded: int = 0, spare_slot: int = 0) -> None:
        """Copy the rows of a pass to the device.

        Args:
            num_padded: rows including spare ones at the end, which attend to nothing and write to `spare_slot`.
        """
        num_rows = len(inputs.token_ids)
        staged = self._staged
        max_rows = self._table.max_rows
        assert num_rows <= max_rows, f"{num_rows} rows where {max_rows} fit"
        token_ids, positions, slots, lengths = staged[HEADER_SIZE : self._tree_at].reshape(4, max_rows)[:, :num_rows]
        token_ids[:] = inputs.token_ids
        positions[:] = inputs.positions
        slots[:] = np.arange(inputs.first_slot, inputs.num_slots)
        self._pad(num_rows, num_padded, spare_slot)
        header = staged[:HEADER_SIZE]
        end = self._tree_at
        header[FIRST_SLOT] = inputs.first_slot
        header[NUM_ROWS] = num_rows
        header[IS_CAUSAL] = inputs.ancestry is None
        if inputs.ancestry is None:
            header[PREFIX_LEN] = inputs.first_slot
            lengths[:] = slots + 1
        else:
            header[PREFIX_LEN] = inputs.prefix_len
            counts, slots_TE = tree_slots_of(inputs.ancestry, inputs.prefix_len)
            lengths[:] = inputs.prefix_len + counts
            header[TREE_STRIDE] = slots_TE.shape[1]
            end += slots_TE.size
            assert end <= len(staged), f"{slots_TE.size} tree slots where {self._table.max_tree_slots} fit"
            staged[self._tree_at : end] = slots_TE.ravel()
        self._table.storage[:end].copy_(torch.from_numpy(staged[:end]))
        if inputs.row_skips is not None:
            skips = torch.from_numpy(inputs.row_skips.astype(np.int32).ravel())
            self._table.row_skips[: len(skips)].copy_(skips)

    def write_spare(self, num_rows: int, *, spare_slot: int) -> None:
        """Fill the table with spare rows only."""
        self._staged[:HEADER_SIZE] = 0
        self._pad(0, num_rows, spare_slot)
        self._table.storage[: self._tree_at].copy_(torch.from_numpy(self._staged[: self._tree_at]))

    def _pad(self, first: int, end: int, spare_slot: int) -> None:
        table = self._staged[HEADER_SIZE : self._tree_at].reshape(4, self._table.max_rows)
        table[:, first:end] = np.array([[0], [0], [spare_slot], [0]])  # token, position, slot, length


def tree_slots_of(ancestry_TW: NDArray[np.bool_], prefix_len: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The number of tree slots that each row attends to, [T], and the slots in order, [T, E / T]."""
    counts = ancestry_TW.sum(1, dtype=np.int32)
    rows, columns = ancestry_TW.nonzero()
    slots_TE = np.zeros((len(counts), max(LEAST_TREE_STRIDE, int(counts.max()))), np.int32)
    first_of_row = np.cumsum(counts) - counts
    slots_TE[rows, np.arange(len(rows)) - first_of_row[rows]] = prefix_len + columns
    return counts, slots_TE
