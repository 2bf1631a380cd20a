"""A pass's inputs as the device reads them.

Legend: T rows, W tree slots, E slots of all rows' trees.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from forerun.backends.gpu.row_table import (
    FIRST_SLOT,
    HEADER_SIZE,
    IS_CAUSAL,
    NUM_ROWS,
    PREFIX_LEN,
    TREE_STRIDE,
    RowTable,
)
from forerun.model.inputs import ForwardInput

LEAST_TREE_STRIDE = 32


class RowWriter:
    """Fills a row table from the host: one copy for a pass, a second one where rows leave sublayers out."""

    def __init__(self, table: RowTable) -> None:
        self._table = table
        self._staged = np.zeros(len(table.storage) - len(table.row_skips), np.int32)
        self._tree_at = HEADER_SIZE + 4 * table.max_rows

    def write(self, inputs: ForwardInput) -> None:
        """Copy what the pass is about to the device."""
        num_rows, staged, max_rows = len(inputs.token_ids), self._staged, self._table.max_rows
        assert num_rows <= max_rows, f"{num_rows} rows where {max_rows} fit"
        token_ids, positions, slots, lengths = staged[HEADER_SIZE : self._tree_at].reshape(4, max_rows)[:, :num_rows]
        token_ids[:], positions[:] = inputs.token_ids, inputs.positions
        slots[:] = np.arange(inputs.first_slot, inputs.num_slots)
        header, end = staged[:HEADER_SIZE], self._tree_at
        header[FIRST_SLOT], header[NUM_ROWS] = inputs.first_slot, num_rows
        header[IS_CAUSAL] = inputs.ancestry is None
        if inputs.ancestry is None:
            header[PREFIX_LEN], lengths[:] = inputs.first_slot, slots + 1
        else:
            header[PREFIX_LEN] = inputs.prefix_len
            counts, slots_TE = tree_slots_of(inputs.ancestry, inputs.prefix_len)
            lengths[:], header[TREE_STRIDE] = inputs.prefix_len + counts, slots_TE.shape[1]
            end += slots_TE.size
            assert end <= len(staged), f"{slots_TE.size} tree slots where {self._table.max_tree_slots} fit"
            staged[self._tree_at : end] = slots_TE.ravel()
        self._table.storage[:end].copy_(torch.from_numpy(staged[:end]))
        if inputs.row_skips is not None:
            skips = torch.from_numpy(inputs.row_skips.astype(np.int32).ravel())
            self._table.row_skips[: len(skips)].copy_(skips)


def tree_slots_of(ancestry_TW: NDArray[np.bool_], prefix_len: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """How many tree slots each row sees, [T], and which, in order, [T, E / T]."""
    counts = ancestry_TW.sum(1, dtype=np.int32)
    rows, columns = ancestry_TW.nonzero()
    slots_TE = np.zeros((len(counts), max(LEAST_TREE_STRIDE, int(counts.max()))), np.int32)
    first_of_row = np.cumsum(counts) - counts
    slots_TE[rows, np.arange(len(rows)) - first_of_row[rows]] = prefix_len + columns
    return counts, slots_TE
