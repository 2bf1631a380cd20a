"""The kernel of attention for many rows at once, of a text or a tree: one program follows a block of rows to the end.

Splits that rows share are loaded once for all of them: those of the prefix, and all of a text, where a row is kept from
what lies behind it. A tree's rows go on one by one through their own tails, which count for nothing in other rows.

Legend: M matrix rows (a row's heads side by side, then the next row's), S ordinals of a split, D head size.
"""

import triton
import triton.language as tl

from forerun.backends.gpu.language import await_inputs
from forerun.backends.gpu.passes.splits import (
    ORDINALS,
    attend_split,
    begin_join,
    find_slots,
    join,
    load_facts,
    load_keys,
    load_values,
    store_mix,
)


@triton.jit
def _attend(cache, slots_S, slot_stride, is_read_S, q_MD, is_visible_MS, scale):
    keys_DS = tl.zeros((q_MD.shape[1], slots_S.shape[0]), q_MD.dtype)
    values_SD = tl.zeros((slots_S.shape[0], q_MD.shape[1]), q_MD.dtype)
    values_SD = load_values(cache[1], slots_S, slot_stride, is_read_S, values_SD)
    keys_DS = load_keys(cache[0], slots_S, slot_stride, is_read_S, keys_DS)
    return attend_split(q_MD, keys_DS, values_SD, is_visible_MS, scale)


@triton.jit(do_not_specialize=["num_rows"])
def attend_text(
    q_ptr, cache, mixed_ptr, table, num_rows, slot_stride, head_stride, scale,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, MATRIX_ROWS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Programs (key head, block of rows), the last rows first: they have the most to do.

    `cache` is (keys, values), `table` (facts, lengths, tails).
    """
    await_inputs(OVERLAPS)
    ROWS: tl.constexpr = MATRIX_ROWS // GROUP
    kv_head, first_row = tl.program_id(0), (tl.num_programs(1) - 1 - tl.program_id(1)) * ROWS
    place_M = tl.arange(0, MATRIX_ROWS)
    row_M = first_row + place_M // GROUP
    is_row_M = (place_M < ROWS * GROUP) & (row_M < num_rows)
    places_M = row_M * NUM_HEADS + kv_head * GROUP + place_M % GROUP
    places_MD = places_M[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    q_MD = tl.load(q_ptr + places_MD, mask=is_row_M[:, None], other=0.0)
    length_M = tl.load(table[1] + row_M, mask=is_row_M, other=0)
    num_splits_M = tl.cdiv(length_M, ORDINALS)
    facts = load_facts(table[0])
    cache = (cache[0] + kv_head * head_stride, cache[1] + kv_head * head_stride)
    num_common = facts[0] // ORDINALS
    limit = tl.max(length_M)
    end_split = tl.where(facts[2] != 0, tl.cdiv(limit, ORDINALS), num_common)
    limit = tl.where(facts[2] != 0, limit, num_common * ORDINALS)
    sofar = begin_join(MATRIX_ROWS, HEAD_DIM)
    for split in range(end_split):
        ordinals_S = split * ORDINALS + tl.arange(0, ORDINALS)
        is_visible_MS = ordinals_S[None, :] < length_M[:, None]
        part = _attend(cache, ordinals_S, slot_stride, ordinals_S < limit, q_MD, is_visible_MS, scale)
        sofar = join(sofar, part, split < num_splits_M)
    end_row = tl.where(facts[2] != 0, first_row, min(first_row + ROWS, num_rows))
    for row in range(first_row, end_row):
        limit = tl.load(table[1] + row)
        for split in range(num_common, tl.cdiv(limit, ORDINALS)):
            ordinals_S = split * ORDINALS + tl.arange(0, ORDINALS)
            slots_S = find_slots(table[2], facts, row, ordinals_S, limit)
            is_read_S = ordinals_S < limit
            part = _attend(cache, slots_S, slot_stride, is_read_S, q_MD, is_read_S[None, :], scale)
            sofar = join(sofar, part, row_M == row)
    store_mix(mixed_ptr, places_M, sofar[1], sofar[2], num_splits_M, is_row_M)
