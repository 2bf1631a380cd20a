"""The attention kernel for many rows, of a text or a tree: one program computes a block of rows over all their splits.

Splits that rows share are loaded once for all rows of a block: the prefix's splits of a tree, or all splits of a text,
with a causal mask. The other splits of a tree are done row by row, as every row has its own tree slots.

In a text the mask gives later positions the probability 0, but 0 times infinity or NaN is NaN. If a block's result has
a NaN, its rows are computed again one by one, each only over the positions that it sees. (The first split of this loop
does not depend on the NaN check, because Triton cannot infer the alignment of an address that depends on a reduction.)

Legend: M matrix rows (a row's heads side by side, then the next row's), S logical positions of a split, D head size.
"""

import triton
import triton.language as tl

from forerun.backends.gpu.kernel_parts import await_inputs
from forerun.backends.gpu.passes.kv_split import (
    SPLIT_SIZE,
    add_sinks,
    attend_in_pieces,
    attend_split,
    begin_join,
    begins_stretch,
    end_stretch,
    find_slots,
    first_split_of,
    has_nan,
    is_seen,
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
def _attend_together(head_cache, q_MD, length_M, least, table, scale, SHAPE: tl.constexpr):
    """Attend to the splits that a block's rows share: all of a text, or those of a tree's prefix. Returns the joined
    complete stretches and the incomplete one.

    Args:
        q_MD: the queries, or what `attend_wide` takes.
        least: no row of the block that sees anything has a smaller length, so nothing before its window is read.
        table: tree slots, header and row, as for `find_slots`.
    """
    prefix_len, _tree_stride, is_causal = table[1]
    num_splits_M = tl.cdiv(length_M, SPLIT_SIZE)
    num_common = prefix_len // SPLIT_SIZE
    limit = tl.where(is_causal != 0, tl.max(length_M), num_common * SPLIT_SIZE)
    sofar = begin_join(SHAPE.matrix_rows, SHAPE.head_dim)
    stretch = sofar
    for split in range(first_split_of(least, SHAPE), tl.cdiv(limit, SPLIT_SIZE)):
        is_seen_M = split < num_splits_M
        if SHAPE.window > 0:
            is_seen_M = is_seen_M & (split >= first_split_of(length_M, SHAPE))
        if begins_stretch(split):
            sofar, stretch = end_stretch(sofar, stretch, is_seen_M)
        if SHAPE.piece == SPLIT_SIZE:
            positions_S = split * SPLIT_SIZE + tl.arange(0, SPLIT_SIZE)
            is_visible_MS = is_seen(positions_S[None, :], length_M[:, None], SHAPE)
            is_read_S = positions_S < limit
            if SHAPE.window > 0:
                is_read_S = is_read_S & (positions_S >= least - SHAPE.window)
            part = _attend(head_cache, positions_S, is_read_S, q_MD, is_visible_MS, scale)
        else:
            seen = (length_M, least, limit)
            part = attend_in_pieces(q_MD, head_cache, table, split * SPLIT_SIZE, seen, scale, SHAPE)
        stretch = join(stretch, part, is_seen_M)
    return sofar, stretch


@triton.jit
def _attend_own(head_cache, q_MD, length_M, table, split, limit, scale, SHAPE: tl.constexpr):
    """Attend to a split of one row's text; `q_MD` and `table` as for `_attend_together`."""
    tree_slots_ptr, header, row = table
    if SHAPE.piece == SPLIT_SIZE:
        positions_S = split * SPLIT_SIZE + tl.arange(0, SPLIT_SIZE)
        slots_S = find_slots(tree_slots_ptr, header, row, positions_S, limit)
        is_read_S = is_seen(positions_S, limit, SHAPE)
        return _attend(head_cache, slots_S, is_read_S, q_MD, is_read_S[None, :], scale)
    else:
        seen = (length_M, limit, limit)
        return attend_in_pieces(q_MD, head_cache, table, split * SPLIT_SIZE, seen, scale, SHAPE)


@triton.jit(do_not_specialize=["num_rows"])
def attend_text(
    q_ptr, cache, mixed_ptr, rows, sinks, num_rows, strides, scale, SHAPE: tl.constexpr, OVERLAPS: tl.constexpr
):
    """The same formula, arguments and result as `attend_tree`, bit for bit. Programs are (key head, block of rows). The
    last rows come first, as they take longest.
    """
    await_inputs(OVERLAPS)
    keys, values = cache
    slot_stride, head_stride = strides
    header_ptr, lengths_ptr, tree_slots_ptr = rows
    ROWS: tl.constexpr = SHAPE.matrix_rows // SHAPE.group
    kv_head = tl.program_id(0)
    first_row = (tl.num_programs(1) - 1 - tl.program_id(1)) * ROWS
    place_M = tl.arange(0, SHAPE.matrix_rows)
    row_M = first_row + place_M // SHAPE.group
    is_row_M = (place_M < ROWS * SHAPE.group) & (row_M < num_rows)
    places_M = row_M * SHAPE.num_heads + kv_head * SHAPE.group + place_M % SHAPE.group
    places_MD = places_M[:, None] * SHAPE.head_dim + tl.arange(0, SHAPE.head_dim)[None, :]
    if SHAPE.piece == SPLIT_SIZE:
        q_MD = tl.load(q_ptr + places_MD, mask=is_row_M[:, None], other=0.0)
    else:
        q_MD = (q_ptr + places_M * SHAPE.head_dim, is_row_M)
    length_M = tl.load(lengths_ptr + row_M, mask=is_row_M, other=0)
    num_splits_M = tl.cdiv(length_M, SPLIT_SIZE)
    header = load_header(header_ptr)
    prefix_len, _tree_stride, is_causal = header
    head_cache = (keys + kv_head * head_stride, values + kv_head * head_stride, slot_stride)
    none = begin_join(SHAPE.matrix_rows, SHAPE.head_dim)
    sofar = none
    stretch = none
    first_split = 0
    end_row = min(first_row + ROWS, num_rows)
    if ROWS > 1:
        first_split = tl.where(is_causal != 0, 0, prefix_len // SPLIT_SIZE)
        least = prefix_len
        if SHAPE.window > 0:
            least = tl.where(is_causal != 0, tl.load(lengths_ptr + first_row), prefix_len)
        table = (tree_slots_ptr, header, first_row)
        sofar, stretch = _attend_together(head_cache, q_MD, length_M, least, table, scale, SHAPE)
        is_spoilt = (is_causal != 0) & has_nan(sofar[2] + stretch[2])
        if is_spoilt:  # The NaN may come from later positions only: compute each row again without them.
            sofar = none
            stretch = none
        end_row = tl.where(is_spoilt | (is_causal == 0), end_row, first_row)
    for row in range(first_row, end_row):
        limit = tl.load(lengths_ptr + row)
        begin = first_split
        if SHAPE.window > 0:
            begin = tl.maximum(first_split, first_split_of(limit, SHAPE))
        for split in range(begin, tl.cdiv(limit, SPLIT_SIZE)):
            if begins_stretch(split):
                sofar, stretch = end_stretch(sofar, stretch, row_M == row)
            part = _attend_own(head_cache, q_MD, length_M, (tree_slots_ptr, header, row), split, limit, scale, SHAPE)
            stretch = join(stretch, part, row_M == row)
    sofar = add_sinks(join(sofar, stretch, is_row_M), sinks, places_M % SHAPE.num_heads)
    store_mix(mixed_ptr, places_M, sofar[1], sofar[2], num_splits_M, is_row_M)
