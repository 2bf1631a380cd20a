"""Which inputs of a layer are enlarged before its weights are rounded, so that those that matter are rounded finer.

Weights are multiplied by a scale for each input, and what feeds the layer is divided by it, which changes no product;
but the weights of enlarged inputs then take more of their groups' 16 steps. Source: AWQ (arXiv 2306.00978), section
3.2: the scales are a power of the inputs' mean size, the power is searched. Unlike AutoAWQ, the error that decides is
that of the layer's own products, not of the block that it is in.

Legend: O output features, I input features, N rows of inputs.
"""

from typing import Final

import torch
from torch import Tensor

from forerun.awq.rounding import to_groups
from forerun.model.quantise import dequantise

NUM_POWERS: Final = 20  # from 0, no scaling, to 0.95, as AutoAWQ tries them
LEAST: Final = 1e-4  # of a scale before they are centred: an input that is always 0 has no size


def best_scales(weight_OI: Tensor, x_NI: Tensor, means_I: Tensor, group_size: int) -> Tensor:
    """The scales [I], around 1, with the least squared error of the products with these rows."""
    best_I, least = torch.ones_like(means_I), torch.inf
    for step in range(NUM_POWERS):
        scales_I = centred(means_I.pow(step / NUM_POWERS).clamp(min=LEAST))
        rounded_OI = dequantise(to_groups(weight_OI * scales_I, group_size)) / scales_I
        error = float((x_NI @ (rounded_OI - weight_OI).T).square_().sum())
        if error < least:
            best_I, least = scales_I, error
    return best_I


def centred(scales_I: Tensor) -> Tensor:
    """The scales with the geometric mean of the least and the largest at 1."""
    return scales_I / (scales_I.max() * scales_I.min()).sqrt()
