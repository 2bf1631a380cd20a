"""The shared memory that attention kernels need, computed without Triton.

Compute capability 8.0 has 163 KiB per program, 8.6, 8.9 and 12.0 have 99, and 9.0 and 10.0 have 227.
"""

from typing import Final

SPLIT: Final = 128  # Logical positions of a text that are attended to at a time.
MOST_MATRIX_ROWS: Final = 32  # The most per program; with more, the matrix units would add in another order.
WIDE_HEAD_BYTES: Final = 256  # Larger heads need one split at a time, and more than 128 registers.
WIDEST_WHOLE: Final = 256  # Head size; of larger heads a split's keys and values are loaded in pieces.
PIECE: Final = 16  # Logical positions of a piece.


def positions_at_a_time(head_dim: int) -> int:
    """Logical positions whose keys and values a program holds together: those of a split, or of a piece of it."""
    return SPLIT if head_dim <= WIDEST_WHOLE else PIECE


def attention_bytes(head_dim: int, item_bytes: int, num_stages: int) -> int:
    """Bytes for keys, values, queries and probabilities of a program that loads this many splits at a time."""
    positions = positions_at_a_time(head_dim)
    split_bytes = 2 * positions * head_dim * item_bytes
    return max(1, num_stages - 1) * split_bytes + MOST_MATRIX_ROWS * (head_dim + positions) * item_bytes


def num_stages_for(head_dim: int, item_bytes: int, *, most: int, limit: int) -> int:
    """Splits loaded at a time: as many as fit in `limit` bytes, at least one and at most `most`."""
    if head_dim * item_bytes > WIDE_HEAD_BYTES:
        return 1
    fitting = (num for num in range(most, 1, -1) if attention_bytes(head_dim, item_bytes, num) <= limit)
    return next(fitting, 1)
