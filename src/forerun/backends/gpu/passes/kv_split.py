"""Attention over one split of a row's text, and the joining of splits: the arithmetic of every attention kernel.

A split is SPLIT consecutive logical positions of a row's text. Which positions they are depends neither on their slots
nor on other rows. A row's result is the same bit for bit beside any other rows, for three reasons:
- Products use the matrix units in tiles of 16 or 32 rows. Both use the same instruction, and so add along the inner
  axis in the same order; 64 rows would use another instruction.
- Probabilities are summed as integers, so that their sum, like a maximum, does not depend on the order.
- Splits are joined in two steps, each in order: first the splits of each stretch (STRETCH splits, beginning at a
  multiple of STRETCH), then the stretches. A text of one stretch has the bits of that stretch.

Loads that may run before the previous kernel has ended bypass the first-level cache (.cg), which might hold older data.

Legend: M matrix rows (a row's heads side by side, then the next row's), S logical positions of a split, D head size.
"""

from typing import Final

import triton
import triton.language as tl

from forerun.backends.gpu.kernel_parts import product
from forerun.backends.gpu.row_table import IS_CAUSAL, PREFIX_LEN, TREE_STRIDE
from forerun.backends.gpu.shared_memory import SPLIT

LOG2_E: Final = 1.4426950408889634

STRETCH: Final = 16  # Splits of a stretch: for a text of 32k tokens, 256 splits, each step joins at most 16 parts.

SPLIT_SIZE = tl.constexpr(SPLIT)
STRETCH_SIZE = tl.constexpr(STRETCH)
_LOG2_E = tl.constexpr(LOG2_E)
_NUMBERS = tl.constexpr(64)  # Of a wide head, loaded at a time.
_LOWEST = tl.constexpr(-1e30)  # Below all scores; unlike infinity it may be subtracted from itself.
# Probabilities are at most 1, so that SPLIT of them, in units of 2^-23, sum to at most 2^30.
_UNITS = tl.constexpr(float(1 << 23))
_UNIT = tl.constexpr(1.0 / (1 << 23))


@triton.jit
def load_header(header_ptr):
    """prefix_len, tree_stride, is_causal of a `RowTable`."""
    prefix_len = tl.load(header_ptr + PREFIX_LEN, cache_modifier=".cg")
    tree_stride = tl.load(header_ptr + TREE_STRIDE, cache_modifier=".cg")
    return prefix_len, tree_stride, tl.load(header_ptr + IS_CAUSAL, cache_modifier=".cg")


@triton.jit
def find_slots(tree_slots_ptr, header, row, positions_S, limit):
    """The slots of a row's logical positions below `limit`. In the prefix a slot has the number of its position."""
    prefix_len, tree_stride, is_causal = header
    is_behind_S = (positions_S >= prefix_len) & (positions_S < tl.where(is_causal != 0, 0, limit))
    places_S = row * tree_stride + positions_S - prefix_len
    return tl.load(tree_slots_ptr + places_S, mask=is_behind_S, other=positions_S, cache_modifier=".cg")


@triton.jit
def first_split_of(length, SHAPE: tl.constexpr):
    """The first split that rows of this length see; their window begins in it."""
    if SHAPE.window == 0:
        return 0
    else:
        return tl.maximum(length - SHAPE.window, 0) // SPLIT_SIZE


@triton.jit
def is_seen(positions, length, SHAPE: tl.constexpr):
    """Whether rows of this length see these logical positions."""
    found = positions < length
    if SHAPE.window > 0:
        found = found & (positions >= length - SHAPE.window)
    return found


@triton.jit
def load_keys(head_ptr, slots_S, slot_stride, is_read_S, others_DS):
    """One head's keys at some slots, transposed; `others_DS` where `is_read_S` is false."""
    places_DS = slots_S[None, :] * slot_stride + tl.arange(0, others_DS.shape[0])[:, None]
    return tl.load(head_ptr + places_DS, mask=is_read_S[None, :], other=others_DS, cache_modifier=".cg")


@triton.jit
def load_values(head_ptr, slots_S, slot_stride, is_read_S, others_SD):
    """One head's values at some slots; `others_SD` where `is_read_S` is false."""
    places_SD = slots_S[:, None] * slot_stride + tl.arange(0, others_SD.shape[1])[None, :]
    return tl.load(head_ptr + places_SD, mask=is_read_S[:, None], other=others_SD, cache_modifier=".cg")


@triton.jit
def attend_split(q_MD, keys_DS, values_SD, is_visible_MS, scale, sums_MS=None):
    """max over s of score[m, s], sum of p[m, s], sum of p[m, s] v[s]: [M], [M], [M, D], for p = 2^(score - max).

    score = scale * (sums + q k) where a row sees a position; without `sums` they are 0. `scale` includes the factor
    log2 e. Values of positions that no row sees must be 0, because their probability of 0 times NaN would be NaN.
    """
    if sums_MS is None:
        sums_MS = tl.zeros((q_MD.shape[0], keys_DS.shape[1]), tl.float32)
    scores_MS = product(q_MD, keys_DS, sums_MS) * scale
    scores_MS = tl.where(is_visible_MS, scores_MS, _LOWEST)
    highest_M = tl.max(scores_MS, axis=1)
    finite_M = tl.where(highest_M == _LOWEST, 0.0, highest_M)  # Rows that see nothing in this split get 0.
    probabilities_MS = tl.exp2(scores_MS - finite_M[:, None]).to(values_SD.dtype)
    mix_MD = product(probabilities_MS, values_SD, tl.zeros((q_MD.shape[0], values_SD.shape[1]), tl.float32))
    units_MS = (probabilities_MS.to(tl.float32) * _UNITS + 0.5).to(tl.int32)
    return highest_M, tl.sum(units_MS, axis=1).to(tl.float32) * _UNIT, mix_MD


@triton.jit
def attend_wide(q, head_cache, slots_S, is_read_S, is_visible_MS, scale, SHAPE: tl.constexpr):
    """`attend_split` of heads too wide for registers: queries and keys are loaded some numbers at a time.

    Args:
        q: the addresses [M] of the queries, and the rows that there are.
        head_cache: keys and values of one key head, and the stride of a slot.
    """
    keys, values, slot_stride = head_cache
    LAST: tl.constexpr = SHAPE.head_dim - _NUMBERS
    values_SD = tl.zeros((slots_S.shape[0], SHAPE.head_dim), values.dtype.element_ty)
    values_SD = load_values(values, slots_S, slot_stride, is_read_S, values_SD)
    sums_MS = tl.zeros((SHAPE.matrix_rows, slots_S.shape[0]), tl.float32)
    for first in range(0, LAST, _NUMBERS):
        q_MN, keys_NS = _load_numbers(q, keys, slots_S, slot_stride, is_read_S, first)
        sums_MS = product(q_MN, keys_NS, sums_MS)
    q_MN, keys_NS = _load_numbers(q, keys, slots_S, slot_stride, is_read_S, LAST)
    return attend_split(q_MN, keys_NS, values_SD, is_visible_MS, scale, sums_MS)


@triton.jit
def _load_numbers(q, keys, slots_S, slot_stride, is_read_S, first):
    """Some numbers of the queries, and of keys at some slots."""
    q_MN = tl.load(q[0][:, None] + first + tl.arange(0, _NUMBERS)[None, :], mask=q[1][:, None], other=0.0)
    keys_NS = tl.zeros((_NUMBERS, slots_S.shape[0]), keys.dtype.element_ty)
    return q_MN, load_keys(keys + first, slots_S, slot_stride, is_read_S, keys_NS)


@triton.jit
def begin_join(MATRIX_ROWS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """The empty state that `join` starts from."""
    highest_M = tl.full((MATRIX_ROWS,), _LOWEST, tl.float32)
    return highest_M, tl.zeros((MATRIX_ROWS,), tl.float32), tl.zeros((MATRIX_ROWS, HEAD_DIM), tl.float32)


@triton.jit
def join(sofar, part, is_seen_M):
    """Join the result so far with the next part, for rows in `is_seen_M`; the result of other rows does not change.

    Both are (maximum, total, mix) as `attend_split` returns them. The joint maximum m is the larger one; totals and
    mixes are added, each times 2^(its maximum - m).
    """
    highest_M = tl.maximum(sofar[0], part[0])
    weight_M = tl.exp2(sofar[0] - highest_M)
    part_weight_M = tl.exp2(part[0] - highest_M)
    total_M = sofar[1] * weight_M + part[1] * part_weight_M
    mix_MD = sofar[2] * weight_M[:, None] + part[2] * part_weight_M[:, None]
    return (
        tl.where(is_seen_M, highest_M, sofar[0]),
        tl.where(is_seen_M, total_M, sofar[1]),
        tl.where(is_seen_M[:, None], mix_MD, sofar[2]),
    )


@triton.jit
def attend_in_pieces(queries, head_cache, table, first, seen, scale, SHAPE: tl.constexpr):
    """`attend_split` of heads too wide for a whole split, which begins at position `first`: its pieces joined in order.

    Args:
        queries: as for `attend_wide`.
        table: tree slots, header and row, as for `find_slots`.
        seen: the lengths of the rows [M]; the smallest of those that see anything; and where the text ends.
    """
    tree_slots_ptr, header, row = table
    length_M, least, limit = seen
    part = begin_join(SHAPE.matrix_rows, SHAPE.head_dim)
    for place in range(0, SPLIT_SIZE, SHAPE.piece):
        positions_S = first + place + tl.arange(0, SHAPE.piece)
        slots_S = find_slots(tree_slots_ptr, header, row, positions_S, limit)
        is_read_S = positions_S < limit
        is_seen_MS = is_seen(positions_S[None, :], length_M[:, None], SHAPE)
        if SHAPE.window > 0:
            is_read_S = is_read_S & (positions_S >= least - SHAPE.window)
        found = attend_wide(queries, head_cache, slots_S, is_read_S, is_seen_MS, scale, SHAPE)
        part = join(part, found, tl.full((SHAPE.matrix_rows,), 1, tl.int1))
    return part


@triton.jit
def begins_stretch(split):
    """True for the first split of a stretch."""
    return split // STRETCH_SIZE * STRETCH_SIZE == split


@triton.jit
def end_stretch(sofar, stretch, is_ended_M):
    """Join the stretch that ends with those before it, and begin an empty one, for rows in `is_ended_M`.

    The first stretch keeps its bits: it is multiplied by 2^0 = 1, and 0 is added.
    """
    none = begin_join(stretch[2].shape[0], stretch[2].shape[1])
    next_stretch = (
        tl.where(is_ended_M, none[0], stretch[0]),
        tl.where(is_ended_M, none[1], stretch[1]),
        tl.where(is_ended_M[:, None], none[2], stretch[2]),
    )
    return join(sofar, stretch, is_ended_M), next_stretch


@triton.jit
def has_nan(mix_MD):
    """True if any element is NaN."""
    return tl.max(tl.max((mix_MD != mix_MD).to(tl.int32), axis=1), axis=0) > 0


@triton.jit
def add_sinks(whole, sinks, head_M):
    """Join (maximum, total, mix) of rows with the sinks of their heads, scores without a value; `sinks` may be None."""
    if sinks is not None:
        sink_M = tl.load(sinks + head_M).to(tl.float32) * _LOG2_E
        none = begin_join(whole[2].shape[0], whole[2].shape[1])
        whole = join(whole, (sink_M, none[1] + 1.0, none[2]), sink_M == sink_M)
    return whole


@triton.jit
def store_mix(mixed_ptr, places_M, total_M, mix_MD, num_parts_M, is_written_M):
    """Write the result of rows whose parts are all joined; it is 0 for a row without parts, which sees no slot."""
    places_MD = places_M[:, None] * mix_MD.shape[1] + tl.arange(0, mix_MD.shape[1])[None, :]
    mix_MD = mix_MD / tl.where(num_parts_M > 0, total_M, 1.0)[:, None]
    tl.store(mixed_ptr + places_MD, mix_MD.to(mixed_ptr.dtype.element_ty), mask=is_written_M[:, None])
