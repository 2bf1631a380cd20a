"""Rotary embedding in three torch calls; same contract as the reference."""

import torch
from torch import Tensor


def rotate(x_TND: Tensor, cos_T1D: Tensor, sin_T1D: Tensor) -> Tensor:
    """Rotate each head of x by its row's angles."""
    return torch.addcmul(x_TND * cos_T1D, x_TND.roll(x_TND.shape[-1] // 2, -1), sin_T1D)
