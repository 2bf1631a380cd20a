"""What a pass's rows are, as kernels read it: one block of int32 on the device, filled by one copy or by kernels.

Legend: R most rows of a pass, E entries of all tails.
"""

from typing import Final

import torch
from torch import Tensor

NUM_FACTS: Final = 8
PREFIX_LEN, FIRST_SLOT, NUM_ROWS, TAIL_STRIDE, IS_CAUSAL = range(5)  # places in `facts`


class RowTable:
    """The rows of one pass; every view keeps its address from pass to pass.

    An ordinal is a token's place in a row's own text: 0, 1, ... up to the row itself. Ordinals below `prefix_len` lie
    in the slots of the same number, the others where the row's tail says.

    Args:
        facts: [8] prefix_len, first_slot, num_rows, tail_stride, is_causal; the rest is spare.
        token_ids: [R]
        positions: [R] in the text, for the rotation.
        slots: [R] where keys and values go.
        lengths: [R] ordinals that a row sees, itself included: prefix_len plus the length of its tail.
        tails: [E] slot of ordinal prefix_len + j of row t at t * tail_stride + j. Not read if is_causal: then the slot
            of an ordinal is the ordinal.
        gates: [R * sublayers] 1 where a row leaves a sublayer out: row t, sublayer s at t * sublayers + s.
    """

    def __init__(self, *, max_rows: int, max_tail_entries: int, num_sublayers: int, device: str) -> None:
        sizes = (NUM_FACTS, max_rows, max_rows, max_rows, max_rows, max_tail_entries, max_rows * num_sublayers)
        self.storage = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
        self.max_rows, self.max_tail_entries, self.num_sublayers = max_rows, max_tail_entries, num_sublayers
        parts: tuple[Tensor, ...] = self.storage.split(sizes)
        self.facts, self.token_ids, self.positions, self.slots, self.lengths, self.tails, self.gates = parts
