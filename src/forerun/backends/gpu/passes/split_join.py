"""How programs that attended to splits of a text leave their parts, and the last one of them joins these.

Long texts have hundreds of splits, whose parts one program would take long to read in order. So there are two steps
(`kv_split`): at each stretch of a row that it has a split of, a program counts itself in, and the last one joins the
stretch; it counts that in at the row, and the last one there joins the row's stretches. A row of one stretch has its
result at the first step. Any program may be the last one.

Legend: M matrix rows (a row's heads side by side, then the next row's), D head size.
"""

import triton
import triton.language as tl

from forerun.backends.gpu.language import no_tiles
from forerun.backends.gpu.passes.kv_split import STRETCH_SIZE, begin_join, join, store_mix


@triton.jit
def num_stretches_of(num_splits):
    """Stretches of so many splits."""
    return (num_splits + STRETCH_SIZE - 1) // STRETCH_SIZE


@triton.jit
def first_part_of(row_M, head_M, SHAPE: tl.constexpr, MAX_SPLITS: tl.constexpr):
    """Where the parts of rows and heads begin, [M]: those of a row's splits, then those of its stretches."""
    return row_M * ((MAX_SPLITS + num_stretches_of(MAX_SPLITS)) * SHAPE.num_heads) + head_M


@triton.jit
def store_part(workspace, part, places_M, is_row_M, SHAPE: tl.constexpr):
    """Leave a part of rows, as `join` takes it, at some places of the workspace."""
    places_MD = places_M[:, None] * SHAPE.head_dim + tl.arange(0, SHAPE.head_dim)[None, :]
    tl.store(workspace.maxima + places_M, part[0], mask=is_row_M)
    tl.store(workspace.totals + places_M, part[1], mask=is_row_M)
    tl.store(workspace.mixes + places_MD, part[2], mask=is_row_M[:, None])


@triton.jit
def _load_part(workspace, places_M, is_seen_M, SHAPE: tl.constexpr):
    """A part of some rows, for `join`. Past the first-level cache, which may know what was here before."""
    places_MD = places_M[:, None] * SHAPE.head_dim + tl.arange(0, SHAPE.head_dim)[None, :]
    highest_M = tl.load(workspace.maxima + places_M, mask=is_seen_M, other=0.0, cache_modifier=".cg")
    total_M = tl.load(workspace.totals + places_M, mask=is_seen_M, other=0.0, cache_modifier=".cg")
    mix_MD = tl.load(workspace.mixes + places_MD, mask=is_seen_M[:, None], other=0.0, cache_modifier=".cg")
    return highest_M, total_M, mix_MD


@triton.jit
def _join_parts(workspace, first_M, num_parts_M, SHAPE: tl.constexpr, NUM_AHEAD: tl.constexpr):
    """The first parts of rows joined in order. NUM_AHEAD loads are in flight at a time: one wait for all."""
    sofar = begin_join(num_parts_M.shape[0], SHAPE.head_dim)
    for first in range(0, tl.max(num_parts_M), NUM_AHEAD):
        parts = no_tiles()
        for ahead in tl.static_range(NUM_AHEAD):
            places_M = first_M + (first + ahead) * SHAPE.num_heads
            part = _load_part(workspace, places_M, first + ahead < num_parts_M, SHAPE)
            parts = parts + (part,)
        for ahead in tl.static_range(NUM_AHEAD):
            sofar = join(sofar, parts[ahead], first + ahead < num_parts_M)
    return sofar


@triton.jit
def _count_in(counters, places_M, num_programs_M, is_counted_M):
    """Where this program is the last one of so many to count itself in, [M]; the counters are 0 again there."""
    tl.debug_barrier()  # Every thread has stored its part before one counts.
    num_before_M = tl.atomic_add(counters + places_M, 1, mask=is_counted_M, sem="acq_rel")
    is_last_M = is_counted_M & (num_before_M == num_programs_M - 1)
    tl.debug_barrier()  # No thread reads before the one that counted.
    tl.store(counters + places_M, 0, mask=is_last_M)
    return is_last_M


@triton.jit
def join_if_last(
    workspace, mixed_ptr, row_M, head_M, stretch, num_splits_M, num_programs_M, is_counted_M,
    SHAPE: tl.constexpr, MAX_SPLITS: tl.constexpr, NUM_AHEAD: tl.constexpr,
):  # fmt: skip
    """Count in at a stretch of rows; where this program is the last one, join the stretch; where it is the last one of
    the row as well, write the result.

    Args:
        num_splits_M: of the rows' whole texts.
        num_programs_M: how many programs count in at the stretch.
        is_counted_M: the rows and heads at which this one does.
    """
    NUM_STRETCHES: tl.constexpr = num_stretches_of(MAX_SPLITS)
    first_M = first_part_of(row_M, head_M, SHAPE, MAX_SPLITS)
    counters_M = row_M * ((NUM_STRETCHES + 1) * SHAPE.num_heads) + head_M
    places_M, num_stretches_M = row_M * SHAPE.num_heads + head_M, num_stretches_of(num_splits_M)
    is_last_M = _count_in(workspace.counters, counters_M + stretch * SHAPE.num_heads, num_programs_M, is_counted_M)
    if tl.max(is_last_M.to(tl.int32)) > 0:
        first_split = stretch * STRETCH_SIZE
        num_parts_M = tl.where(is_last_M, tl.minimum(num_splits_M - first_split, STRETCH_SIZE), 0)
        part = _join_parts(workspace, first_M + first_split * SHAPE.num_heads, num_parts_M, SHAPE, NUM_AHEAD)
        store_mix(mixed_ptr, places_M, part[1], part[2], num_parts_M, is_last_M & (num_stretches_M <= 1))
        is_one_of_many_M = is_last_M & (num_stretches_M > 1)
        if tl.max(is_one_of_many_M.to(tl.int32)) > 0:
            store_part(workspace, part, first_M + (MAX_SPLITS + stretch) * SHAPE.num_heads, is_one_of_many_M, SHAPE)
            counters_M += NUM_STRETCHES * SHAPE.num_heads
            is_last_M = _count_in(workspace.counters, counters_M, num_stretches_M, is_one_of_many_M)
            if tl.max(is_last_M.to(tl.int32)) > 0:
                first_M += MAX_SPLITS * SHAPE.num_heads
                num_parts_M = tl.where(is_last_M, num_stretches_M, 0)
                part = _join_parts(workspace, first_M, num_parts_M, SHAPE, NUM_AHEAD)
                store_mix(mixed_ptr, places_M, part[1], part[2], num_parts_M, is_last_M)
