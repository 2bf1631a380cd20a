"""Moves keys and values of a cache between slots, in all layers with one launch.

Legend: L layers, S slots, K key/value heads, D head size, M moves.
"""

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from forerun.backends.gpu.kernel_parts import await_inputs, launch_options
from forerun.backends.gpu.tree import device_tree as layout

MOVES_HEADER = tl.constexpr(layout.MOVES_HEADER)
TILE_BYTES: Final = 16384  # A program holds this much: some columns of all moved rows.
MOST_COLUMNS: Final = 512


def move_slots(storage_2LSKD: Tensor, moves: Tensor, *, overlaps: bool = False) -> None:
    """Copy slots to slots, as if all were read before the first is written.

    Args:
        moves: int32, the number of moves, the destination slot of the first, and the source slots in order; see
            `DeviceTree`.
    """
    assert storage_2LSKD.is_contiguous(), "rows are addressed as one block"
    num_slots = storage_2LSKD.shape[2]
    row_size = storage_2LSKD[0, 0, 0].numel()
    most_moves = triton.next_power_of_2(moves.shape[0] - layout.MOVES_HEADER)
    columns = TILE_BYTES // (most_moves * storage_2LSKD.element_size())
    columns = min(columns, MOST_COLUMNS, triton.next_power_of_2(row_size))
    num_parts = storage_2LSKD.shape[0] * storage_2LSKD.shape[1]
    move_slots_kernel[(triton.cdiv(row_size, columns), num_parts)](
        storage_2LSKD, moves, num_slots,
        ROW_SIZE=row_size, MOST_MOVES=most_moves, COLUMNS=columns, OVERLAPS=overlaps,
        **launch_options(num_warps=4, overlaps=overlaps),
    )  # fmt: skip


@triton.jit
def move_slots_kernel(
    storage, moves, num_slots, ROW_SIZE: tl.constexpr, MOST_MOVES: tl.constexpr, COLUMNS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """storage[part, first + m] = storage[part, source[m]] for all moves m, every source read before.

    storage [2 L, S, K * D], moves (number, first, sources). A program moves some columns of all rows in one part, one
    layer's keys or values: no other program reads or writes those.
    """
    await_inputs(OVERLAPS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    part = storage + tl.program_id(1).to(tl.int64) * num_slots * ROW_SIZE
    num_moves = tl.load(moves)
    first_slot = tl.load(moves + 1)
    move = tl.arange(0, MOST_MOVES)
    source = tl.load(moves + MOVES_HEADER + move, mask=move < num_moves, other=0)
    is_moved = (move < num_moves)[:, None] & (column < ROW_SIZE)[None, :]
    values = tl.load(part + source.to(tl.int64)[:, None] * ROW_SIZE + column[None, :], mask=is_moved)
    tl.debug_barrier()  # Every thread has read before any writes.
    slot = (first_slot + move).to(tl.int64)
    tl.store(part + slot[:, None] * ROW_SIZE + column[None, :], values, mask=is_moved)
