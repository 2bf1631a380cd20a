"""The interface to the ranks that share a model, and the sum that all of them compute.

Legend: T rows, H hidden size, N columns of one rank.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
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


def sum_in_order(partials_TH: Sequence[Tensor], residual_TH: Tensor) -> Tensor:
    """The residual plus every rank's partial product, added rank by rank in at least float32, so that every rank gets
    the same bits, and a row's bits do not depend on other rows. [T, H] in the residual's dtype."""
    total_TH = residual_TH.to(torch.promote_types(residual_TH.dtype, torch.float32))
    for partial_TH in partials_TH:
        total_TH = total_TH + partial_TH
    return total_TH.to(residual_TH.dtype)
