"""What a pass needs of the ranks that share its model.

Legend: T rows, H hidden size, N columns of one rank.
"""

from typing import Protocol

from torch import Tensor


class RankGroup(Protocol):
    """The ranks of one model, all of which run the same pass at the same time.

    Args of an implementation:
        rank: of this process.
        num_ranks: of the group.
    """

    rank: int
    num_ranks: int

    def add_partials(self, partial_TH: Tensor, residual_TH: Tensor) -> Tensor:
        """The residual plus the partials of all ranks, added in the order of ranks in at least float32, so that a row
        is the same on every rank and with any company; [T, H] in the residual's dtype."""
        ...

    def join_columns(self, part_TN: Tensor) -> Tensor:
        """The columns of all ranks side by side, in the order of ranks, on every rank."""
        ...

    def lose(self) -> None:
        """Have no rank wait any longer, since one of them has gone; the pass under way then fails."""
        ...
