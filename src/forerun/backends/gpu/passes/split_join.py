"""Stores the partial results of splits of a text, and joins them in the program that finishes last.

Long texts have hundreds of splits; one program would take long to read all their parts in order. So parts are joined in
two steps (`kv_split`). Every stretch of a row has a counter: a program with a split in it increments the counter, and
the program that makes it complete joins the stretch. That program increments the row's counter, and the one that makes
this complete joins the row's stretches. A row of one stretch is finished after the first step. Any program may be the
last one.

Legend: M matrix rows (a row's heads side by side, then the next row's), D head size.
"""

import triton
import triton.language as tl

from forerun.backends.gpu.kernel_parts import no_tiles
from forerun.backends.gpu.passes.kv_split import STRETCH_SIZE, add_sinks, begin_join, join, store_mix


@triton.jit
def num_stretches_of(num_splits):
    """Number of stretches for this many splits."""
    return (num_splits + STRETCH_SIZE - 1) // STRETCH_SIZE


@triton.jit
def first_part_of(row_M, head_M, SHAPE: tl.constexpr, MAX_SPLITS: tl.constexpr):
    """The index [M] of the first part of each row and head. The parts of splits come first, then those of stretches."""
    return row_M * ((MAX_SPLITS + num_stretches_of(MAX_SPLITS)) * SHAPE.num_heads) + head_M


@triton.jit
def store_part(workspace, part, places_M, is_row_M, SHAPE: tl.constexpr):
    """Store a part of some rows, in the form that `join` takes, at these places of the workspace."""
    places_MD = places_M[:, None] * SHAPE.head_dim + tl.arange(0, SHAPE.head_dim)[None, :]
    tl.store(workspace.maxima + places_M, part[0], mask=is_row_M)
    tl.store(workspace.totals + places_M, part[1], mask=is_row_M)
    tl.store(workspace.mixes + places_MD, part[2], mask=is_row_M[:, None])


@triton.jit
def _load_part(workspace, places_M, is_seen_M, SHAPE: tl.constexpr):
    """Load a part of some rows for `join`, bypassing the first-level cache (.cg), which may hold older contents."""
    places_MD = places_M[:, None] * SHAPE.head_dim + tl.arange(0, SHAPE.head_dim)[None, :]
    highest_M = tl.load(workspace.maxima + places_M, mask=is_seen_M, other=0.0, cache_modifier=".cg")
    total_M = tl.load(workspace.totals + places_M, mask=is_seen_M, other=0.0, cache_modifier=".cg")
    mix_MD = tl.load(workspace.mixes + places_MD, mask=is_seen_M[:, None], other=0.0, cache_modifier=".cg")
    return highest_M, total_M, mix_MD


@triton.jit
def _join_parts(workspace, first_M, num_left_out_M, num_parts_M, SHAPE: tl.constexpr, NUM_AHEAD: tl.constexpr):
    """Join the first `num_parts_M` parts of rows in order, without the first `num_left_out_M` of them if there is a
    window. NUM_AHEAD parts are loaded at a time, with one wait for all of them.
    """
    sofar = begin_join(num_parts_M.shape[0], SHAPE.head_dim)
    for first in range(0, tl.max(num_parts_M), NUM_AHEAD):
        parts = no_tiles()
        for ahead in tl.static_range(NUM_AHEAD):
            places_M = first_M + (first + ahead) * SHAPE.num_heads
            is_one_M = _is_one_of(first + ahead, num_left_out_M, num_parts_M, SHAPE)
            part = _load_part(workspace, places_M, is_one_M, SHAPE)
            parts = parts + (part,)
        for ahead in tl.static_range(NUM_AHEAD):
            sofar = join(sofar, parts[ahead], _is_one_of(first + ahead, num_left_out_M, num_parts_M, SHAPE))
    return sofar


@triton.jit
def _is_one_of(part, num_left_out_M, num_parts_M, SHAPE: tl.constexpr):
    is_one_M = part < num_parts_M
    if SHAPE.window > 0:
        is_one_M = is_one_M & (part >= num_left_out_M)
    return is_one_M


@triton.jit
def _count_in(counters, places_M, num_programs_M, is_counted_M):
    """Increment the counters at these places; return [M] where this program was the last of `num_programs_M`. There
    the counters are set to 0 again.
    """
    tl.debug_barrier()  # All threads have stored their parts before one of them counts.
    num_before_M = tl.atomic_add(counters + places_M, 1, mask=is_counted_M, sem="acq_rel")
    is_last_M = is_counted_M & (num_before_M == num_programs_M - 1)
    tl.debug_barrier()  # No thread reads parts before the counting thread has seen the counter.
    tl.store(counters + places_M, 0, mask=is_last_M)
    return is_last_M


@triton.jit
def join_if_last(
    workspace, mixed_ptr, sinks, row_M, head_M, stretch, splits_M, num_programs_M, is_counted_M,
    SHAPE: tl.constexpr, MAX_SPLITS: tl.constexpr, NUM_AHEAD: tl.constexpr,
):  # fmt: skip
    """Increment the counters of a stretch. Join the stretch for rows where this program is the last one; write the
    result of rows where it is also the last one of the row.

    Args:
        splits_M: the first split that each row sees, and the number of splits of its whole text.
        num_programs_M: how many programs increment the stretch's counter.
        is_counted_M: the rows and heads whose counter this program increments.
    """
    NUM_STRETCHES: tl.constexpr = (MAX_SPLITS + STRETCH_SIZE - 1) // STRETCH_SIZE
    first_split_M, num_splits_M = splits_M
    first_M = first_part_of(row_M, head_M, SHAPE, MAX_SPLITS)
    counters_M = row_M * ((NUM_STRETCHES + 1) * SHAPE.num_heads) + head_M
    places_M = row_M * SHAPE.num_heads + head_M
    end_stretch_M = num_stretches_of(num_splits_M)
    first_stretch_M = first_split_M // STRETCH_SIZE
    num_stretches_M = end_stretch_M
    if SHAPE.window > 0:
        num_stretches_M = end_stretch_M - first_stretch_M
    is_last_M = _count_in(workspace.counters, counters_M + stretch * SHAPE.num_heads, num_programs_M, is_counted_M)
    if tl.max(is_last_M.to(tl.int32)) > 0:
        first_split = stretch * STRETCH_SIZE
        num_parts_M = tl.where(is_last_M, tl.minimum(num_splits_M - first_split, STRETCH_SIZE), 0)
        first_part_M = first_M + first_split * SHAPE.num_heads
        part = _join_parts(workspace, first_part_M, first_split_M - first_split, num_parts_M, SHAPE, NUM_AHEAD)
        whole = add_sinks(part, sinks, head_M)
        store_mix(mixed_ptr, places_M, whole[1], whole[2], num_parts_M, is_last_M & (num_stretches_M <= 1))
        is_one_of_many_M = is_last_M & (num_stretches_M > 1)
        if tl.max(is_one_of_many_M.to(tl.int32)) > 0:
            store_part(workspace, part, first_M + (MAX_SPLITS + stretch) * SHAPE.num_heads, is_one_of_many_M, SHAPE)
            counters_M += NUM_STRETCHES * SHAPE.num_heads
            is_last_M = _count_in(workspace.counters, counters_M, num_stretches_M, is_one_of_many_M)
            if tl.max(is_last_M.to(tl.int32)) > 0:
                first_M += MAX_SPLITS * SHAPE.num_heads
                num_parts_M = tl.where(is_last_M, end_stretch_M, 0)
                part = _join_parts(workspace, first_M, first_stretch_M, num_parts_M, SHAPE, NUM_AHEAD)
                whole = add_sinks(part, sinks, head_M)
                store_mix(mixed_ptr, places_M, whole[1], whole[2], num_parts_M, is_last_M)
