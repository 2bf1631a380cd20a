"""Fills a pass's row table on the device. `rows` is the `RowFields` of a table."""

import triton
import triton.language as tl

from forerun.backends.gpu.row_table import FIRST_SLOT, IS_CAUSAL, NUM_ROWS, PREFIX_LEN, TREE_STRIDE


@triton.jit
def write_header(rows, prefix_len, first_slot, num_rows, tree_stride):
    """Write the header for the pass of a tree."""
    tl.store(rows.header + PREFIX_LEN, prefix_len)
    tl.store(rows.header + FIRST_SLOT, first_slot)
    tl.store(rows.header + NUM_ROWS, num_rows)
    tl.store(rows.header + TREE_STRIDE, tree_stride)
    tl.store(rows.header + IS_CAUSAL, 0)


@triton.jit
def write_rows(rows, row, is_there, token_ids, positions, slots, lengths):
    """Store rows at their places."""
    tl.store(rows.token_ids + row, token_ids, mask=is_there)
    tl.store(rows.positions + row, positions, mask=is_there)
    tl.store(rows.slots + row, slots, mask=is_there)
    tl.store(rows.lengths + row, lengths, mask=is_there)


@triton.jit
def write_successors(rows, row, is_there, token_ids, prefix_len, slots, tree_stride):
    """Store rows that follow the prefix directly.

    Spare rows are stored like this too, with token 0 and a slot that no row reads. The number of rows is fixed, and
    valid content prevents NaN.
    """
    positions = tl.zeros_like(row) + prefix_len
    write_rows(rows, row, is_there, token_ids, positions, slots, positions + 1)
    tl.store(rows.tree_slots + row * tree_stride, slots, mask=is_there)
