"""Launches tree attention: one kernel for few rows, which splits their texts, and one for many rows.

Both kernels give the same bits for a row.

Legend: R rows, Q query heads, K key/value heads, G = Q / K, S slots, D head size, N stretches of the longest text, P
its splits and stretches together.
"""

from math import prod
from typing import Final, NamedTuple

import torch
from torch import Tensor

from forerun.backends.gpu.kernel_parts import IS_EMULATED, launch_options, shared_limit
from forerun.backends.gpu.passes.kv_split import LOG2_E, STRETCH
from forerun.backends.gpu.passes.text_attention import attend_text
from forerun.backends.gpu.passes.tree_attention import attend_tree
from forerun.backends.gpu.row_table import RowTable
from forerun.backends.gpu.shared_memory import (
    MOST_MATRIX_ROWS,
    SPLIT,
    WIDE_HEAD_BYTES,
    WIDEST_WHOLE,
    num_stages_for,
    positions_at_a_time,
)

FEW_MATRIX_ROWS: Final = MOST_MATRIX_ROWS if IS_EMULATED else 16  # On a CPU products of 16 and 32 rows have other bits.
NUM_WARPS: Final = 8
MOST_WARPS: Final = 16
WIDE_HEAD: Final = 64  # Head size; with smaller heads a thread holds more addresses, with larger ones more inputs.
FEW_PROGRAMS: Final = 128  # This many programs run at once, one on each multiprocessor.


class AttentionShape(NamedTuple):
    """The sizes that attention kernels are compiled for.

    Args:
        group: query heads of a key head (G).
        matrix_rows: pairs of a row and a query head that a program computes at a time.
        window: a row sees the last `window` logical positions of its text, its own included; 0: all of them.
        piece: logical positions whose keys and values are loaded at a time: those of a split, or fewer of wide heads.
    """

    num_heads: int
    group: int
    head_dim: int
    matrix_rows: int
    window: int
    piece: int


class AttentionWorkspace(NamedTuple):
    """Memory for the partial results of splits and stretches, until the last program joins them.

    All layers share one workspace, as kernels run one after another.

    Args:
        maxima: float32 [R, P, Q], the highest score of each split, then of each stretch.
        totals: float32 [R, P, Q], the sums of their probabilities.
        mixes: float32 [R, P, Q, D], their sums of values weighted by probabilities.
        counters: int32 [R, N + 1, Q], programs that have finished, for each stretch and for the row; all 0 between
            kernels.
    """

    maxima: Tensor
    totals: Tensor
    mixes: Tensor
    counters: Tensor

    @classmethod
    def for_heads(
        cls, *, max_rows: int, num_heads: int, head_dim: int, max_splits: int, device: str
    ) -> "AttentionWorkspace":
        """A workspace for passes of at most `max_rows` rows whose texts, with tree slots, have `max_splits` splits."""
        num_stretches = -(-max_splits // STRETCH)
        parts = (max_rows, max_splits + num_stretches, num_heads)
        assert prod(parts) * head_dim < 1 << 31, "offsets are int32"
        return cls(
            maxima=torch.empty(parts, dtype=torch.float32, device=device),
            totals=torch.empty(parts, dtype=torch.float32, device=device),
            mixes=torch.empty(*parts, head_dim, dtype=torch.float32, device=device),
            counters=torch.zeros(max_rows, num_stretches + 1, num_heads, dtype=torch.int32, device=device),
        )

    @property
    def max_splits(self) -> int:
        return self.maxima.shape[1] - self.counters.shape[1] + 1


def tree_attention(
    q: Tensor, keys_SKD: Tensor, values_SKD: Tensor, mixed: Tensor, rows: RowTable, *, num_rows: int, num_heads: int,
    num_splits: int, workspace: AttentionWorkspace, overlaps: bool, is_settled: bool = False, window: int = 0,
    sinks_Q: Tensor | None = None,
) -> None:  # fmt: skip
    """Write the attention output of each row over the slots that it sees.

    Args:
        q: [R, Q * D] rotated queries.
        keys_SKD, values_SKD: all slots, in the queries' dtype; slots that no row sees may hold anything.
        mixed: [R, Q * D], the output.
        num_splits: at least prefix_len // SPLIT. Programs whose split is not wholly in the prefix end at once.
        is_settled: whether the previous kernel leaves `rows` and the slots below prefix_len alone, so that they may be
            read while it still runs.
        window: see `AttentionShape`; with one, every row sees at least prefix_len positions, or none.
        sinks_Q: a score for each query head that counts in its softmax, and whose share goes to no value; or None.
    """
    if window:
        num_splits = min(num_splits, -(-window // SPLIT))
    max_rows = len(workspace.maxima)
    max_splits = workspace.max_splits
    assert num_rows <= max_rows, f"{num_rows} rows where {max_rows} fit"
    _check(q, keys_SKD, values_SKD, mixed, num_rows, num_heads)
    num_kv_heads, head_dim = keys_SKD.shape[1:]
    group = num_heads // num_kv_heads
    matrix_rows = _fewest_rows(keys_SKD, group)
    if group > matrix_rows or num_kv_heads * _num_units(num_rows, num_splits, matrix_rows // group) > FEW_PROGRAMS:
        matrix_rows = _most_rows(head_dim)
    num_units = _num_units(num_rows, num_splits, matrix_rows // group)
    is_crowded = _lacks_registers(keys_SKD) or head_dim * keys_SKD.element_size() > WIDE_HEAD_BYTES
    # Early loads need more registers than there are for two programs on a multiprocessor or wide heads.
    has_room = num_kv_heads * num_units <= FEW_PROGRAMS and not is_crowded
    is_early = overlaps and is_settled and has_room
    attend_tree[(num_kv_heads, num_units)](
        q, (keys_SKD, values_SKD), mixed, (rows.header, rows.lengths, rows.tree_slots), sinks_Q, workspace, num_rows,
        keys_SKD.stride()[:2], LOG2_E / head_dim**0.5,
        SHAPE=AttentionShape(num_heads, group, head_dim, matrix_rows, window, positions_at_a_time(head_dim)),
        MAX_SPLITS=max_splits,
        NUM_AHEAD=8 if is_early and num_splits >= 4 else 4, OVERLAPS=overlaps, IS_SETTLED=is_early,
        maxnreg=128 if not is_early and (_fits_half_the_registers(keys_SKD) or is_crowded) else None,
        **launch_options(
            num_warps=MOST_WARPS if is_crowded else NUM_WARPS,
            num_stages=1 if is_early else _num_stages(keys_SKD, 2), overlaps=overlaps,
        ),
    )  # fmt: skip


def text_attention(
    q: Tensor, keys_SKD: Tensor, values_SKD: Tensor, mixed: Tensor, rows: RowTable, *, num_rows: int, num_heads: int,
    overlaps: bool, window: int = 0, sinks_Q: Tensor | None = None,
) -> None:  # fmt: skip
    """The same as `tree_attention`, for passes whose rows occupy the GPU without splitting their texts."""
    _check(q, keys_SKD, values_SKD, mixed, num_rows, num_heads)
    num_kv_heads, head_dim = keys_SKD.shape[1:]
    group = num_heads // num_kv_heads
    matrix_rows = _fewest_rows(keys_SKD, group)
    is_widest = head_dim > WIDEST_WHOLE
    if _fits_half_the_registers(keys_SKD) or group > matrix_rows:
        matrix_rows = _most_rows(head_dim)
    attend_text[(num_kv_heads, -(-num_rows // (matrix_rows // group)))](
        q, (keys_SKD, values_SKD), mixed, (rows.header, rows.lengths, rows.tree_slots), sinks_Q, num_rows,
        keys_SKD.stride()[:2], LOG2_E / head_dim**0.5,
        SHAPE=AttentionShape(num_heads, group, head_dim, matrix_rows, window, positions_at_a_time(head_dim)),
        OVERLAPS=overlaps, maxnreg=128 if is_widest else None,
        **launch_options(
            num_warps=MOST_WARPS if _lacks_registers(keys_SKD) or is_widest else NUM_WARPS,
            num_stages=_num_stages(keys_SKD, 3), overlaps=overlaps,
        ),
    )  # fmt: skip


def _num_units(num_rows: int, num_splits: int, block_rows: int) -> int:
    """Programs of a key head: one for each row, and one for each pair of a prefix split and a block of rows."""
    return num_rows + num_splits * -(-num_rows // block_rows)


def _num_stages(keys_SKD: Tensor, most: int) -> int:
    """Splits in shared memory at a time: `most`, or fewer if this GPU has too little shared memory."""
    return num_stages_for(keys_SKD.shape[2], keys_SKD.element_size(), most=most, limit=shared_limit())


def _fits_half_the_registers(keys_SKD: Tensor) -> bool:
    """True if a multiprocessor has enough registers for two programs."""
    head_dim = keys_SKD.shape[2]
    item_bytes = keys_SKD.element_size()
    return item_bytes == 2 and WIDE_HEAD <= head_dim <= WIDE_HEAD_BYTES // item_bytes


def _fewest_rows(keys_SKD: Tensor, group: int) -> int:
    """The smallest number of rows and heads of a program. For wide heads in float32 it is the heads of one row: no
    matrix instruction requires more there, and the products take many registers.
    """
    is_wide = keys_SKD.dtype == torch.float32 and keys_SKD.shape[2] > WIDE_HEAD
    return 1 << (group - 1).bit_length() if is_wide and not IS_EMULATED else FEW_MATRIX_ROWS


def _most_rows(head_dim: int) -> int:
    """The largest number of rows and heads of a program; the results of more rows of wide heads take too many
    registers."""
    return MOST_MATRIX_ROWS if head_dim <= WIDEST_WHOLE else FEW_MATRIX_ROWS


def _lacks_registers(keys_SKD: Tensor) -> bool:
    """True if products without matrix instructions need more registers than NUM_WARPS warps have."""
    return keys_SKD.dtype == torch.float32 and keys_SKD.shape[2] >= WIDE_HEAD


def _check(q: Tensor, keys_SKD: Tensor, values_SKD: Tensor, mixed: Tensor, num_rows: int, num_heads: int) -> None:
    """Refuse tensors that the kernels would misread."""
    num_kv_heads, head_dim = keys_SKD.shape[1:]
    assert keys_SKD.shape == values_SKD.shape and keys_SKD.stride() == values_SKD.stride(), "keys and values lie alike"
    assert keys_SKD.stride(2) == 1 and head_dim >= 16 and head_dim.bit_count() == 1, f"heads of {head_dim}"
    assert len(keys_SKD) * keys_SKD.stride(0) < 1 << 31, "offsets are int32"
    assert num_heads % num_kv_heads == 0 and num_heads // num_kv_heads <= MOST_MATRIX_ROWS, f"{num_heads} heads"
    for tensor in (q, mixed):
        assert len(tensor) >= num_rows and tensor.shape[1] == num_heads * head_dim and tensor.is_contiguous()
        assert tensor.dtype == keys_SKD.dtype == values_SKD.dtype, "queries and results are of the cache's dtype"
