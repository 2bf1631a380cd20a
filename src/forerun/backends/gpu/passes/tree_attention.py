"""The tree attention kernel: programs attend to splits of the text in parallel; the last to finish joins their parts.

Splits that lie wholly in the prefix are the same for every row: a program computes one of them for a block of rows. The
rest of a row's text is its own: one program per row computes it through the row's tree slots. Each program stores its
parts; the last one of a stretch of 16 splits joins them (`split_join`).

The critical path to the next kernel is kept short in three ways: the row table and the prefix are loaded before the
previous kernel has ended, if that kernel does not write them; all loads of one stage are issued together; rows are
joined by several programs in parallel, several parts at a time.

Legend: M matrix rows (a row's heads side by side, then the next row's), S logical positions of a split, D head size.
"""

import triton
import triton.language as tl

from forerun.backends.gpu.kernel_parts import await_inputs
from forerun.backends.gpu.passes.kv_split import (
    SPLIT_SIZE,
    STRETCH_SIZE,
    attend_in_pieces,
    attend_split,
    find_slots,
    first_split_of,
    is_seen,
    load_header,
    load_keys,
    load_values,
)
from forerun.backends.gpu.passes.split_join import first_part_of, join_if_last, store_part


@triton.jit
def _load_split(
    q_ptr_MD, head_cache, slots_S, is_row_M, is_read_S, is_new_S,
    SHAPE: tl.constexpr, OVERLAPS: tl.constexpr, IS_SETTLED: tl.constexpr,
):  # fmt: skip
    """Queries, keys and values. Those of a settled prefix are loaded before the previous kernel has ended.

    Keys are loaded last: they are needed first, so that all other loads are in flight by then.
    """
    keys, values, slot_stride = head_cache
    HEAD_DIM: tl.constexpr = SHAPE.head_dim
    keys_DS = tl.zeros((HEAD_DIM, slots_S.shape[0]), keys.dtype.element_ty)
    values_SD = tl.zeros((slots_S.shape[0], HEAD_DIM), values.dtype.element_ty)
    if IS_SETTLED:
        values_SD = load_values(values, slots_S, slot_stride, is_read_S & ~is_new_S, values_SD)
        keys_DS = load_keys(keys, slots_S, slot_stride, is_read_S & ~is_new_S, keys_DS)
        is_read_S = is_read_S & is_new_S
        await_inputs(OVERLAPS)
    q_MD = tl.load(q_ptr_MD, mask=is_row_M[:, None], other=0.0)
    values_SD = load_values(values, slots_S, slot_stride, is_read_S, values_SD)
    return q_MD, load_keys(keys, slots_S, slot_stride, is_read_S, keys_DS), values_SD


@triton.jit
def _rows_of(unit, num_rows, kv_head, SHAPE: tl.constexpr):
    """A unit's rows and heads, [M] each, and which of them exist; then the unit's number among the units of common
    splits, and the number of blocks of rows.
    """
    ROWS: tl.constexpr = SHAPE.matrix_rows // SHAPE.group
    is_own = unit < num_rows
    num_blocks = tl.cdiv(num_rows, ROWS)
    common = tl.maximum(unit - num_rows, 0)
    place_M = tl.arange(0, SHAPE.matrix_rows)
    row_M = tl.where(is_own, unit, common % num_blocks * ROWS) + place_M // SHAPE.group
    is_row_M = (place_M < tl.where(is_own, SHAPE.group, ROWS * SHAPE.group)) & (row_M < num_rows)
    return row_M, kv_head * SHAPE.group + place_M % SHAPE.group, is_row_M, common, num_blocks


@triton.jit
def _splits_of(is_own, common_split, num_common, limit, prefix_len, SHAPE: tl.constexpr):
    """A program's first split and the split after its last one: a row's own splits, or one of the common ones."""
    first_split = tl.where(is_own, num_common, common_split)
    if SHAPE.window > 0:
        first_seen = first_split_of(tl.where(is_own, limit, prefix_len), SHAPE)
        first_split = tl.where(is_own, tl.maximum(first_split, first_seen), first_split + first_seen)
    return first_split, tl.where(is_own, tl.cdiv(limit, SPLIT_SIZE), first_split + 1)


@triton.jit
def _programs_of(stretch, first_split_M, num_splits_M, num_common, SHAPE: tl.constexpr):
    """How many programs increment the counters of a stretch: one for each common split that a row sees in it, and the
    row's own program, from the stretch of its first own split on. If a row has no own split, its program counts in the
    row's last stretch.
    """
    num_seen_M = tl.minimum(num_splits_M, num_common) - stretch * STRETCH_SIZE
    num_seen_M = tl.minimum(tl.maximum(num_seen_M, 0), STRETCH_SIZE)
    first_own_M = num_common
    if SHAPE.window > 0:  # Splits before the window are not seen.
        num_before_M = tl.minimum(tl.maximum(first_split_M - stretch * STRETCH_SIZE, 0), STRETCH_SIZE)
        num_seen_M = tl.maximum(num_seen_M - num_before_M, 0)
        first_own_M = tl.maximum(num_common, first_split_M)
    first_own_M = tl.minimum(tl.maximum(num_splits_M - 1, 0), first_own_M) // STRETCH_SIZE
    return num_seen_M + (stretch >= first_own_M).to(tl.int32)


@triton.jit
def _join_stretches(
    workspace, mixed_ptr, sinks, row_M, head_M, is_row_M, length_M, splits, is_own,
    SHAPE: tl.constexpr, MAX_SPLITS: tl.constexpr, NUM_AHEAD: tl.constexpr,
):  # fmt: skip
    """Call `join_if_last` for every stretch that has one of this program's splits.

    Args:
        splits: the program's first split, the split after its last one, and the number of common splits.
        is_own: whether they are one row's own splits.
    """
    first_split, end_split, num_common = splits
    first_split_M = first_split_of(length_M, SHAPE)
    num_splits_M = tl.cdiv(length_M, SPLIT_SIZE)
    is_counted_M = is_row_M & (tl.where(is_own, -1, first_split) < num_splits_M)
    if SHAPE.window > 0:
        is_counted_M = is_counted_M & (first_split >= tl.where(is_own, 0, first_split_M))
    last_split = tl.maximum(end_split - 1, 0)
    first_stretch = tl.minimum(first_split, last_split) // STRETCH_SIZE
    for stretch in range(first_stretch, last_split // STRETCH_SIZE + 1):
        num_programs_M = _programs_of(stretch, first_split_M, num_splits_M, num_common, SHAPE)
        join_if_last(
            workspace, mixed_ptr, sinks, row_M, head_M, stretch, (first_split_M, num_splits_M), num_programs_M,
            is_counted_M, SHAPE, MAX_SPLITS, NUM_AHEAD,
        )  # fmt: skip


@triton.jit(do_not_specialize=["num_rows"])
def attend_tree(
    q_ptr, cache, mixed_ptr, rows, sinks, workspace, num_rows, strides, scale, SHAPE: tl.constexpr,
    MAX_SPLITS: tl.constexpr, NUM_AHEAD: tl.constexpr, OVERLAPS: tl.constexpr, IS_SETTLED: tl.constexpr,
):  # fmt: skip
    """mixed[t, n] = sum over s of softmax over s of (q[t, n] keys[s, n / G] / sqrt D) times values[s, n / G].

    s runs over the slots of the logical positions that a row of lengths[t] positions sees (`is_seen`). q and mixed
    [T, H, D], cache (keys, values) [slots, K, D] each with the strides of a slot and of a head, rows (header, lengths
    [T], tree_slots) of a `RowTable`; `scale` is log2 e / sqrt D. With sinks [H] a head's softmax has one more score.
    Programs are (key head, unit): first the rows, which take longest, then pairs of a prefix split and a block of rows.
    """
    if not IS_SETTLED:
        await_inputs(OVERLAPS)
    keys, values = cache
    slot_stride, head_stride = strides
    header_ptr, lengths_ptr, tree_slots_ptr = rows
    kv_head = tl.program_id(0)
    unit = tl.program_id(1)
    is_own = unit < num_rows
    row_M, head_M, is_row_M, common, num_blocks = _rows_of(unit, num_rows, kv_head, SHAPE)
    header = load_header(header_ptr)
    prefix_len = header[0]
    length_M = tl.load(lengths_ptr + row_M, mask=is_row_M, other=0, cache_modifier=".cg")
    limit = tl.load(lengths_ptr + unit, mask=is_own, other=0, cache_modifier=".cg")
    num_common = prefix_len // SPLIT_SIZE
    first_split, end_split = _splits_of(is_own, common // num_blocks, num_common, limit, prefix_len, SHAPE)
    limit = tl.where(is_own, limit, prefix_len)
    if is_own | (first_split < num_common):  # Programs of rows always wait, so that no launch overtakes two others.
        first_M = first_part_of(row_M, head_M, SHAPE, MAX_SPLITS)
        head_cache = (keys + kv_head * head_stride, values + kv_head * head_stride, slot_stride)
        places_M = row_M * SHAPE.num_heads + head_M
        q_ptr_MD = q_ptr + places_M[:, None] * SHAPE.head_dim + tl.arange(0, SHAPE.head_dim)[None, :]
        for split in range(first_split, end_split):
            if SHAPE.piece == SPLIT_SIZE:
                positions_S = split * SPLIT_SIZE + tl.arange(0, SPLIT_SIZE)
                slots_S = find_slots(tree_slots_ptr, header, unit, positions_S, limit)
                is_read_S = is_seen(positions_S, limit, SHAPE)
                is_new_S = positions_S >= prefix_len
                q_MD, keys_DS, values_SD = _load_split(
                    q_ptr_MD, head_cache, slots_S, is_row_M, is_read_S, is_new_S, SHAPE, OVERLAPS, IS_SETTLED
                )
                is_seen_MS = is_seen(positions_S[None, :], length_M[:, None], SHAPE)
                part = attend_split(q_MD, keys_DS, values_SD, is_seen_MS, scale)
            else:
                queries = (q_ptr + places_M * SHAPE.head_dim, is_row_M)
                seen = (length_M, limit, limit)
                table = (tree_slots_ptr, header, unit)
                part = attend_in_pieces(queries, head_cache, table, split * SPLIT_SIZE, seen, scale, SHAPE)
            store_part(workspace, part, first_M + split * SHAPE.num_heads, is_row_M, SHAPE)
        if IS_SETTLED:
            await_inputs(OVERLAPS)  # A row that ends within the common splits has not waited yet.
        splits = (first_split, end_split, num_common)
        _join_stretches(
            workspace, mixed_ptr, sinks, row_M, head_M, is_row_M, length_M, splits, is_own, SHAPE, MAX_SPLITS, NUM_AHEAD
        )
