"""Scales for the inputs of a layer, chosen so that the weights of large inputs are rounded more finely.

The weights of each input are multiplied by its scale and the input is divided by it, which changes no product; weights
with a larger scale then use more of their groups' 16 steps. Source: AWQ (arXiv 2306.00978), section 3.2: the scales
are a power of the inputs' mean magnitude, and the power is searched for. Unlike AutoAWQ, we minimise the error of the
layer's own products, not that of the block which contains it.

Legend: O output features, I input features, N rows of inputs.
"""

from typing import Final

import torch
from torch import Tensor

from forerun.awq.rounding import to_groups
from forerun.model.quantise import dequantise

NUM_POWERS: Final = 20  # from 0 (no scaling) to 0.95, as in AutoAWQ
LEAST: Final = 1e-4  # smallest scale before centring, for inputs that are always 0


def best_scales(weight_OI: Tensor, x_NI: Tensor, means_I: Tensor, group_size: int) -> Tensor:
    """The scales [I], centred on 1, that give the smallest squared error of the products with these rows."""
    best_I, least = torch.ones_like(means_I), torch.inf
    for step in range(NUM_POWERS):
        scales_I = centred(means_I.pow(step / NUM_POWERS).clamp(min=LEAST))
        rounded_OI = dequantise(to_groups(weight_OI * scales_I, group_size)) / scales_I
        error = float((x_NI @ (rounded_OI - weight_OI).T).square_().sum())
        if error < least:
            best_I, least = scales_I, error
    return best_I


def centred(scales_I: Tensor) -> Tensor:
    """Divide the scales by the geometric mean of the smallest and the largest."""
    return scales_I / (scales_I.max() * scales_I.min()).sqrt()
