"""The kernel of attention for many rows at once, of a text or a tree: one program follows a block of rows to the end.

Splits that rows share are loaded once for all of them: those of the prefix, and all of a text, where a row is kept from
what lies behind it. A tree's rows go on one by one through their own tree slots, which count for nothing in others.

A text's later rows count for nothing in earlier ones as probabilities of 0; but 0 times infinity or NaN is NaN. Where a
block has a NaN, its rows are done again one by one, each over what it sees and nothing else. (Where the first split is,
may not depend on whether they are: of an address that follows from a reduction Triton knows no alignment.)

Legend: M matrix rows (a row's heads side by side, then the next row's), S logical positions of a split, D head size.
"""

import triton
import triton.language as tl

from forerun.backends.gpu.language import await_inputs
from forerun.backends.gpu.passes.kv_split import (
    SPLIT_SIZE,
    attend_split,
    begin_join,
    begins_stretch,
    end_stretch,
    find_slots,
    has_nan,
    join,
    load_header,
    load_keys,
    load_values,
    store_mix,
)


@triton.jit
def _attend(head_cache, slots_S, is_read_S, q_MD, is_visible_MS, scale):
    """`attend_split` at some slots of one key head."""
    keys, values, slot_stride = head_cache
    keys_DS = tl.zeros((q_MD.shape[1], slots_S.shape[0]), q_MD.dtype)
    values_SD = tl.zeros((slots_S.shape[0], q_MD.shape[1]), q_MD.dtype)
    values_SD = load_values(values, slots_S, slot_stride, is_read_S, values_SD)
    keys_DS = load_keys(keys, slots_S, slot_stride, is_read_S, keys_DS)
    return attend_split(q_MD, keys_DS, values_SD, is_visible_MS, scale)


@triton.jit
def _attend_together(head_cache, q_MD, length_M, prefix_len, is_causal, scale):
    """The stretches that have ended, joined, and the one that has not, of what a block's rows share: a text, or the
    splits of a tree's prefix.
    """
    num_splits_M, num_common = tl.cdiv(length_M, SPLIT_SIZE), prefix_len // SPLIT_SIZE
    limit = tl.where(is_causal != 0, tl.max(length_M), num_common * SPLIT_SIZE)
    sofar = begin_join(q_MD.shape[0], q_MD.shape[1])
    stretch = sofar
    for split in range(tl.cdiv(limit, SPLIT_SIZE)):
        is_seen_M = split < num_splits_M
        if begins_stretch(split):
            sofar, stretch = end_stretch(sofar, stretch, is_seen_M)
        positions_S = split * SPLIT_SIZE + tl.arange(0, SPLIT_SIZE)
        is_visible_MS = positions_S[None, :] < length_M[:, None]
        part = _attend(head_cache, positions_S, positions_S < limit, q_MD, is_visible_MS, scale)
        stretch = join(stretch, part, is_seen_M)
    return sofar, stretch


@triton.jit(do_not_specialize=["num_rows"])
def attend_text(q_ptr, cache, mixed_ptr, rows, num_rows, strides, scale, SHAPE: tl.constexpr, OVERLAPS: tl.constexpr):
    """The formula, the arguments and the bits of `attend_tree`. Programs are (key head, block of rows), the last rows
    first: they have the most to do.
    """
    await_inputs(OVERLAPS)
    keys, values = cache
    slot_stride, head_stride = strides
    header_ptr, lengths_ptr, tree_slots_ptr = rows
    ROWS: tl.constexpr = SHAPE.matrix_rows // SHAPE.group
    kv_head, first_row = tl.program_id(0), (tl.num_programs(1) - 1 - tl.program_id(1)) * ROWS
    place_M = tl.arange(0, SHAPE.matrix_rows)
    row_M = first_row + place_M // SHAPE.group
    is_row_M = (place_M < ROWS * SHAPE.group) & (row_M < num_rows)
    places_M = row_M * SHAPE.num_heads + kv_head * SHAPE.group + place_M % SHAPE.group
    places_MD = places_M[:, None] * SHAPE.head_dim + tl.arange(0, SHAPE.head_dim)[None, :]
    q_MD = tl.load(q_ptr + places_MD, mask=is_row_M[:, None], other=0.0)
    length_M = tl.load(lengths_ptr + row_M, mask=is_row_M, other=0)
    num_splits_M = tl.cdiv(length_M, SPLIT_SIZE)
    header = load_header(header_ptr)
    prefix_len, _tree_stride, is_causal = header
    head_cache = (keys + kv_head * head_stride, values + kv_head * head_stride, slot_stride)
    none = begin_join(SHAPE.matrix_rows, SHAPE.head_dim)
    sofar, stretch, first_split, end_row = none, none, 0, min(first_row + ROWS, num_rows)
    if ROWS > 1:
        first_split = tl.where(is_causal != 0, 0, prefix_len // SPLIT_SIZE)
        sofar, stretch = _attend_together(head_cache, q_MD, length_M, prefix_len, is_causal, scale)
        is_spoilt = (is_causal != 0) & has_nan(sofar[2] + stretch[2])
        if is_spoilt:  # Perhaps only by what later rows left: each row once more, without what it does not see.
            sofar, stretch = none, none
        end_row = tl.where(is_spoilt | (is_causal == 0), end_row, first_row)
    for row in range(first_row, end_row):
        limit = tl.load(lengths_ptr + row)
        for split in range(first_split, tl.cdiv(limit, SPLIT_SIZE)):
            if begins_stretch(split):
                sofar, stretch = end_stretch(sofar, stretch, row_M == row)
            positions_S = split * SPLIT_SIZE + tl.arange(0, SPLIT_SIZE)
            slots_S = find_slots(tree_slots_ptr, header, row, positions_S, limit)
            is_read_S = positions_S < limit
            part = _attend(head_cache, slots_S, is_read_S, q_MD, is_read_S[None, :], scale)
            stretch = join(stretch, part, row_M == row)
    sofar = join(sofar, stretch, is_row_M)
    store_mix(mixed_ptr, places_M, sofar[1], sofar[2], num_splits_M, is_row_M)
