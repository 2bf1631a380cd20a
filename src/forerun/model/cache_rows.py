"""Keys and values in 8 bits, as a cache stores them.

A row of one head is D codes followed by the four bytes of their scale, a float32 in the machine's byte order. The scale
lies inside the row, so whatever moves or saves rows of a cache needs no change. The kernels of every backend round with
the same float32 operations.

Legend: D head size.
"""

from typing import Final

import torch
from torch import Tensor

from forerun.core.model_spec import SCALE_BYTES

MOST_CODE: Final = 127
LEAST_SIZE: Final = (
    1e-30  # of the largest value of a row; smaller ones count as zeros, as their inverse may be infinite
)


def encode_rows(rows_D: Tensor) -> Tensor:
    """int8 [..., D + SCALE_BYTES]: the rows, each rounded to the nearest multiple of its scale, halves to even.

    The scale of a row is that of its largest value / 127. A row with a NaN or an infinity decodes to NaN.
    """
    wide_D = rows_D.to(torch.float32)
    largest = wide_D.abs().amax(-1, keepdim=True)
    most = torch.full_like(largest, MOST_CODE)  # a tensor, since torch divides by and through numbers otherwise
    is_zero = largest < LEAST_SIZE
    inverse = torch.where(is_zero, 0.0, most / largest)
    scales = torch.where(is_zero, 0.0, largest / most + 0.0 * largest)  # infinity becomes NaN
    codes_D = torch.round(wide_D * inverse).nan_to_num_(0.0)
    stored = torch.empty((*wide_D.shape[:-1], wide_D.shape[-1] + SCALE_BYTES), dtype=torch.int8, device=wide_D.device)
    stored[..., :-SCALE_BYTES] = codes_D
    stored[..., -SCALE_BYTES:] = scales.flatten().view(torch.int8).view(*scales.shape[:-1], SCALE_BYTES)
    return stored


def scales_of(stored: Tensor) -> Tensor:
    """float32 [..., 1]: the scales of stored rows."""
    return stored[..., -SCALE_BYTES:].clone(memory_format=torch.contiguous_format).view(torch.float32)


def decode_rows(stored: Tensor, dtype: torch.dtype) -> Tensor:
    """[..., D]: stored rows as numbers, rounded to this dtype."""
    wide = torch.promote_types(dtype, torch.float32)
    return (stored[..., :-SCALE_BYTES].to(wide) * scales_of(stored)).to(dtype)
