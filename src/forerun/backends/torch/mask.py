"""Who may see whom in one forward pass, before a kernel turns it into its own form."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeMask:
    """T new rows over S filled slots.

    Args:
        num_rows: T.
        num_slots: S; the new rows are the last T slots.
        prefix_len: slots every row sees.
        ancestry_TW: bool, who sees which of the W = S - prefix_len tree slots; None means causal.
    """

    num_rows: int
    num_slots: int
    prefix_len: int
    ancestry_TW: Tensor | None = None
