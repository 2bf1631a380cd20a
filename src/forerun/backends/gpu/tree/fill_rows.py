"""Filling a pass's row table on the device.

Legend: R rows, E entries of tails.
"""

import triton
import triton.language as tl

from forerun.backends.gpu import row_table as rows

PREFIX_LEN, FIRST_SLOT, NUM_ROWS = map(tl.constexpr, (rows.PREFIX_LEN, rows.FIRST_SLOT, rows.NUM_ROWS))
TAIL_STRIDE, IS_CAUSAL = map(tl.constexpr, (rows.TAIL_STRIDE, rows.IS_CAUSAL))


@triton.jit
def write_facts(facts, prefix_len, first_slot, num_rows, tail_stride):
    """Say what the pass of a tree is."""
    tl.store(facts + PREFIX_LEN, prefix_len)
    tl.store(facts + FIRST_SLOT, first_slot)
    tl.store(facts + NUM_ROWS, num_rows)
    tl.store(facts + TAIL_STRIDE, tail_stride)
    tl.store(facts + IS_CAUSAL, 0)


@triton.jit
def write_rows(
    token_ids_R, positions_R, slots_R, lengths_R, row, is_there, token_ids, positions, slots, lengths
):  # fmt: skip
    """Store rows at their places."""
    tl.store(token_ids_R + row, token_ids, mask=is_there)
    tl.store(positions_R + row, positions, mask=is_there)
    tl.store(slots_R + row, slots, mask=is_there)
    tl.store(lengths_R + row, lengths, mask=is_there)


@triton.jit
def write_successors(
    token_ids_R, positions_R, slots_R, lengths_R, tails_E, row, is_there, token_ids, prefix_len, slots, tail_stride
):  # fmt: skip
    """Store rows that follow the prefix at once.

    The spare ones are such rows too, of token 0 in a slot that nobody reads: a pass has always the same number of rows,
    and a row of sane content cannot make anything that is not a number.
    """
    positions = tl.zeros_like(row) + prefix_len
    write_rows(token_ids_R, positions_R, slots_R, lengths_R, row, is_there, token_ids, positions, slots, positions + 1)
    tl.store(tails_E + row * tail_stride, slots, mask=is_there)
