"""The kernel of tree attention: splits of the text side by side, joined by whoever finishes last.

Splits wholly below the prefix's end are the same for every row: a program takes one of them for a block of rows. From
there on a row's text is its own: one program per row follows its tail. Each counts itself in at its rows' counters, and
the last one joins a row's parts; any of them may be the last.

The chain that the next kernel waits for is kept short: what the row table and the prefix hold is asked for before the
kernel before has ended, if it is settled by then; everything that is read at one stage is asked for at once; rows are
joined by as many programs as there are, several parts at a time.

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
def _load_split(
    q_ptr_MD, cache, slots_S, slot_stride, is_row_M, is_read_S, is_new_S,
    HEAD_DIM: tl.constexpr, OVERLAPS: tl.constexpr, IS_SETTLED: tl.constexpr,
):  # fmt: skip
    """Queries, keys and values. Those of a settled prefix are asked for before the kernel before has ended.

    Keys come last: the first to be waited for, so that all else has been asked for by then.
    """
    keys_DS = tl.zeros((HEAD_DIM, slots_S.shape[0]), cache[0].dtype.element_ty)
    values_SD = tl.zeros((slots_S.shape[0], HEAD_DIM), cache[1].dtype.element_ty)
    if IS_SETTLED:
        values_SD = load_values(cache[1], slots_S, slot_stride, is_read_S & ~is_new_S, values_SD)
        keys_DS = load_keys(cache[0], slots_S, slot_stride, is_read_S & ~is_new_S, keys_DS)
        is_read_S = is_read_S & is_new_S
        await_inputs(OVERLAPS)
    q_MD = tl.load(q_ptr_MD, mask=is_row_M[:, None], other=0.0)
    values_SD = load_values(cache[1], slots_S, slot_stride, is_read_S, values_SD)
    return q_MD, load_keys(cache[0], slots_S, slot_stride, is_read_S, keys_DS), values_SD


@triton.jit
def _store_part(workspace, part, first_M, split, is_row_M, NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr):
    places_M = first_M + split * NUM_HEADS
    places_MD = places_M[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    tl.store(workspace[0] + places_M, part[0], mask=is_row_M)
    tl.store(workspace[1] + places_M, part[1], mask=is_row_M)
    tl.store(workspace[2] + places_MD, part[2], mask=is_row_M[:, None])


@triton.jit
def _load_part(workspace, first_M, split, num_splits_M, NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """A split's part of some rows, for `join`. Past the first-level cache, which may know what was here before."""
    places_M = first_M + split * NUM_HEADS
    is_seen_M = split < num_splits_M
    places_MD = places_M[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    highest_M = tl.load(workspace[0] + places_M, mask=is_seen_M, other=0.0, cache_modifier=".cg")
    total_M = tl.load(workspace[1] + places_M, mask=is_seen_M, other=0.0, cache_modifier=".cg")
    mix_MD = tl.load(workspace[2] + places_MD, mask=is_seen_M[:, None], other=0.0, cache_modifier=".cg")
    return highest_M, total_M, mix_MD


@triton.jit
def _join_parts(
    workspace, first_M, num_splits_M, most, NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, NUM_AHEAD: tl.constexpr
):
    """The parts of rows, at `most` so many, joined in order. NUM_AHEAD are on their way at a time: one wait for all."""
    sofar = begin_join(num_splits_M.shape[0], HEAD_DIM)
    for first_split in range(0, most, NUM_AHEAD):
        parts = ()
        for ahead in tl.static_range(NUM_AHEAD):
            part = _load_part(workspace, first_M, first_split + ahead, num_splits_M, NUM_HEADS, HEAD_DIM)
            parts = parts + (part,)  # type: ignore[assignment]  # noqa: RUF005 (Triton knows no starred tuples)
        for ahead in tl.static_range(NUM_AHEAD):
            sofar = join(sofar, parts[ahead], first_split + ahead < num_splits_M)
    return sofar[1], sofar[2]


@triton.jit
def _finish(
    workspace, mixed_ptr, places_M, first_M, num_splits_M, num_programs, is_row_M,
    NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, NUM_AHEAD: tl.constexpr,
):  # fmt: skip
    """Count in at every row and head; where this program is the last one, write the result."""
    tl.debug_barrier()  # all threads have stored their parts
    num_before_M = tl.atomic_add(workspace[3] + places_M, 1, mask=is_row_M, sem="acq_rel")
    is_last_M = is_row_M & (num_before_M == num_programs - 1)
    most = tl.max(tl.where(is_last_M, tl.maximum(num_splits_M, 1), 0))
    if most > 0:
        tl.debug_barrier()  # no thread reads before the one that counted
        tl.store(workspace[3] + places_M, 0, mask=is_last_M)
        num_joined_M = tl.where(is_last_M, num_splits_M, 0)
        total_M, mix_MD = _join_parts(workspace, first_M, num_joined_M, most, NUM_HEADS, HEAD_DIM, NUM_AHEAD)
        store_mix(mixed_ptr, places_M, total_M, mix_MD, num_joined_M, is_last_M)


@triton.jit(do_not_specialize=["num_rows"])
def attend_tree(
    q_ptr, cache, mixed_ptr, table, workspace, num_rows, slot_stride, head_stride, scale,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, MATRIX_ROWS: tl.constexpr,
    MAX_SPLITS: tl.constexpr, NUM_AHEAD: tl.constexpr, OVERLAPS: tl.constexpr, IS_SETTLED: tl.constexpr,
):  # fmt: skip
    """Programs (key head, unit). Units are the rows, which have the longest way; then splits of the prefix, for all
    blocks of rows each.

    `cache` is (keys, values), `table` (facts, lengths, tails), `workspace` (maxima, totals, mixes, counters).
    """
    if not IS_SETTLED:
        await_inputs(OVERLAPS)
    ROWS: tl.constexpr = MATRIX_ROWS // GROUP
    kv_head, unit = tl.program_id(0), tl.program_id(1)
    is_own = unit < num_rows
    num_blocks, common = tl.cdiv(num_rows, ROWS), tl.maximum(unit - num_rows, 0)
    place_M = tl.arange(0, MATRIX_ROWS)
    row_M = tl.where(is_own, unit, common % num_blocks * ROWS) + place_M // GROUP
    is_row_M = (place_M < tl.where(is_own, GROUP, ROWS * GROUP)) & (row_M < num_rows)
    head_M = kv_head * GROUP + place_M % GROUP
    facts = load_facts(table[0])
    length_M = tl.load(table[1] + row_M, mask=is_row_M, other=0, cache_modifier=".cg")
    limit = tl.load(table[1] + unit, mask=is_own, other=0, cache_modifier=".cg")
    num_common = facts[0] // ORDINALS
    first_split = tl.where(is_own, num_common, common // num_blocks)
    end_split = tl.where(is_own, tl.cdiv(limit, ORDINALS), first_split + 1)
    limit = tl.where(is_own, limit, facts[0])
    if is_own | (first_split < num_common):  # programs of rows always wait, so that no launch overtakes two others
        first_M = row_M * (MAX_SPLITS * NUM_HEADS) + head_M
        cache = (cache[0] + kv_head * head_stride, cache[1] + kv_head * head_stride)
        q_ptr_MD = q_ptr + (row_M * NUM_HEADS + head_M)[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
        for split in range(first_split, end_split):
            ordinals_S = split * ORDINALS + tl.arange(0, ORDINALS)
            slots_S = find_slots(table[2], facts, unit, ordinals_S, limit)
            is_read_S, is_new_S = ordinals_S < limit, ordinals_S >= facts[0]
            q_MD, keys_DS, values_SD = _load_split(
                q_ptr_MD, cache, slots_S, slot_stride, is_row_M, is_read_S, is_new_S, HEAD_DIM, OVERLAPS, IS_SETTLED
            )
            part = attend_split(q_MD, keys_DS, values_SD, ordinals_S[None, :] < length_M[:, None], scale)
            _store_part(workspace, part, first_M, split, is_row_M, NUM_HEADS, HEAD_DIM)
        if IS_SETTLED:
            await_inputs(OVERLAPS)  # a row that ends within the common splits has not come by it
        places_M, num_splits_M = row_M * NUM_HEADS + head_M, tl.cdiv(length_M, ORDINALS)
        _finish(
            workspace, mixed_ptr, places_M, first_M, num_splits_M, num_common + 1, is_row_M,
            NUM_HEADS, HEAD_DIM, NUM_AHEAD,
        )  # fmt: skip
