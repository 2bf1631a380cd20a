"""Rotary position embedding on whole heads.

Legend: T rows, N heads, D head size. The tables hold cos and sin of each row's position; sin carries a minus sign in
its first half, so that swapping the halves of x and multiplying is the rotation. Source: arXiv 2104.09864.
"""

from torch import Tensor


def rotate(x_TND: Tensor, cos_T1D: Tensor, sin_T1D: Tensor) -> Tensor:
    """Rotate each head of x by its row's angles."""
    half = x_TND.shape[-1] // 2
    swapped_TND = x_TND.roll(half, -1)
    return x_TND * cos_T1D + swapped_TND * sin_T1D
