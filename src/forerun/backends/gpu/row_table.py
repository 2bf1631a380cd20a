"""What a pass's rows are, as kernels read it: one block of int32 on the device, filled by one copy or by kernels.

Legend: R most rows of a pass, E slots of all rows' trees.
"""

from typing import Final, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

HEADER_SIZE: Final = 8
PREFIX_LEN, FIRST_SLOT, NUM_ROWS, TREE_STRIDE, IS_CAUSAL = map(tl.constexpr, range(5))  # places in `header`


class RowFields(NamedTuple):
    """The parts of a row table; every one keeps its address from pass to pass.

    A logical position is a token's place in a row's own text: 0, 1, ... up to the row itself. Those below `prefix_len`
    lie in the slots of the same number, the others where the row's tree slots say.

    Args:
        header: [8] prefix_len, first_slot, num_rows, tree_stride, is_causal; the rest is spare.
        token_ids: [R]
        positions: [R] in the text, for the rotation.
        slots: [R] where keys and values go.
        lengths: [R] logical positions that a row sees, itself included: prefix_len plus the number of its tree slots.
        tree_slots: [E] slot of logical position prefix_len + j of row t at t * tree_stride + j. Not read if is_causal:
            then the slot of a logical position is the position.
        row_skips: [R * sublayers] 1 where a row leaves a sublayer out: row t, sublayer s at t * sublayers + s.
    """

    header: Tensor
    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    lengths: Tensor
    tree_slots: Tensor
    row_skips: Tensor


class RowTable:
    """The rows of one pass."""

    def __init__(self, *, max_rows: int, max_tree_slots: int, num_sublayers: int, device: str) -> None:
        sizes = (HEADER_SIZE, max_rows, max_rows, max_rows, max_rows, max_tree_slots, max_rows * num_sublayers)
        self.storage = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
        self.max_rows, self.max_tree_slots, self.num_sublayers = max_rows, max_tree_slots, num_sublayers
        parts: tuple[Tensor, ...] = self.storage.split(sizes)
        self.fields = RowFields(*parts)
        self.header, self.token_ids, self.positions, self.slots, self.lengths, self.tree_slots, self.row_skips = parts
