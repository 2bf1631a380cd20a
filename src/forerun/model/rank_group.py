"""The interface to the ranks that share a model.

Legend: T rows, H hidden size, N columns of one rank.
"""

from typing import Protocol

from torch import Tensor


class RankGroup(Protocol):
    """The ranks of one model, all of which run the same pass at the same time.

    Args of an implementation:
        rank: this process's rank.
        num_ranks: number of ranks in the group.
    """

    rank: int
    num_ranks: int

    def add_partials(self, partial_TH: Tensor, residual_TH: Tensor) -> Tensor:
        """The residual plus the partials of all ranks, [T, H] in the residual's dtype.

        The partials are added in the order of ranks in at least float32, so a row's sum is the same on every rank and
        does not depend on the other rows.
        """
        ...

    def join_columns(self, part_TN: Tensor) -> Tensor:
        """The columns of all ranks side by side, in the order of ranks, on every rank."""
        ...

    def lose(self) -> None:
        """Make all ranks stop waiting, because one of them has ended; the current pass then fails."""
        ...
