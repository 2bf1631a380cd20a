"""A pass's inputs as the device reads them.

Legend: T rows, W tree slots, E entries of all tails.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from forerun.backends.gpu.row_table import FIRST_SLOT, IS_CAUSAL, NUM_FACTS, NUM_ROWS, PREFIX_LEN, TAIL_STRIDE, RowTable
from forerun.model.inputs import ForwardInput

LEAST_TAIL_STRIDE = 32


class RowWriter:
    """Fills a row table from the host: one copy for a pass, a second one where rows leave sublayers out."""

    def __init__(self, table: RowTable) -> None:
        self._table = table
        self._staged = np.zeros(len(table.storage) - len(table.gates), np.int32)
        self._tails_at = NUM_FACTS + 4 * table.max_rows

    def write(self, inputs: ForwardInput) -> None:
        """Copy what the pass is about to the device."""
        num_rows, staged, max_rows = len(inputs.token_ids), self._staged, self._table.max_rows
        assert num_rows <= max_rows, f"{num_rows} rows where {max_rows} fit"
        token_ids, positions, slots, lengths = staged[NUM_FACTS : self._tails_at].reshape(4, max_rows)[:, :num_rows]
        token_ids[:], positions[:] = inputs.token_ids, inputs.positions
        slots[:] = np.arange(inputs.first_slot, inputs.num_slots)
        facts, end = staged[:NUM_FACTS], self._tails_at
        facts[FIRST_SLOT], facts[NUM_ROWS] = inputs.first_slot, num_rows
        facts[IS_CAUSAL] = inputs.ancestry is None
        if inputs.ancestry is None:
            facts[PREFIX_LEN], lengths[:] = inputs.first_slot, slots + 1
        else:
            facts[PREFIX_LEN] = inputs.prefix_len
            counts, tails_TE = tails_of(inputs.ancestry, inputs.prefix_len)
            lengths[:], facts[TAIL_STRIDE] = inputs.prefix_len + counts, tails_TE.shape[1]
            end += tails_TE.size
            assert end <= len(staged), f"tails of {tails_TE.size} entries where {self._table.max_tail_entries} fit"
            staged[self._tails_at : end] = tails_TE.ravel()
        self._table.storage[:end].copy_(torch.from_numpy(staged[:end]))
        if inputs.row_skips is not None:
            gates = torch.from_numpy(inputs.row_skips.astype(np.int32).ravel())
            self._table.gates[: len(gates)].copy_(gates)


def tails_of(ancestry_TW: NDArray[np.bool_], prefix_len: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """How many tree slots each row sees, [T], and which, in order, [T, E / T]."""
    counts = ancestry_TW.sum(1, dtype=np.int32)
    rows, columns = ancestry_TW.nonzero()
    tails_TE = np.zeros((len(counts), max(LEAST_TAIL_STRIDE, int(counts.max()))), np.int32)
    first_of_row = np.cumsum(counts) - counts
    tails_TE[rows, np.arange(len(rows)) - first_of_row[rows]] = prefix_len + columns
    return counts, tails_TE
