"""Add up the partial products of all ranks.

Legend: T rows, H hidden size.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def sum_in_order(partials_TH: Sequence[Tensor], residual_TH: Tensor) -> Tensor:
    """The residual plus every rank's partial product, added rank by rank in at least float32, so that every rank gets
    the same bits, and a row's bits do not depend on other rows. [T, H] in the residual's dtype."""
    total_TH = residual_TH.to(torch.promote_types(residual_TH.dtype, torch.float32))
    for partial_TH in partials_TH:
        total_TH = total_TH + partial_TH
    return total_TH.to(residual_TH.dtype)
