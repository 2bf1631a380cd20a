"""Weights rounded to 4 bits in groups, as in AWQ's packed layout: float16 scales and 4-bit zero points.

Legend: O output features, I input features, G groups, M inputs of a group, N rows of inputs.
"""

from typing import Final

import torch
from torch import Tensor

from forerun.model.quantise import MAX_INT4, dequantise, in_groups, nonzero
from forerun.model.weights import Int4Weight

CLIPPING: Final = tuple(1.0 - step / 20 for step in range(11))  # shares of a group's range, as AutoAWQ tries them


def to_groups(weight_OI: Tensor, group_size: int, clips_OG: Tensor | None = None) -> Int4Weight:
    """Quantise each group over the range from its smallest to its largest weight (0 included), or a share of it.

    Args:
        weight_OI: float32; `group_size` divides I.
        clips_OG: the share of each group's range; None: the whole range.
    """
    plain_OGM = in_groups(weight_OI, group_size)
    share_OG1 = 1.0 if clips_OG is None else clips_OG[:, :, None]
    low_OG1 = plain_OGM.amin(-1, keepdim=True).clamp_(max=0.0) * share_OG1
    high_OG1 = plain_OGM.amax(-1, keepdim=True).clamp_(min=0.0) * share_OG1
    scales_OG1 = ((high_OG1 - low_OG1) / MAX_INT4).half().float()
    zeros_OG1 = (-low_OG1 / nonzero(scales_OG1)).round_().clamp_(0, MAX_INT4)
    values_OGM = (plain_OGM / nonzero(scales_OG1)).round_().add_(zeros_OG1).clamp_(0, MAX_INT4)
    return Int4Weight(
        values_OI=values_OGM.flatten(1).to(torch.uint8),
        scales_OG=scales_OG1.squeeze(-1),
        zeros_OG=zeros_OG1.squeeze(-1).to(torch.uint8),
        group_size=group_size,
    )


def best_clips(weight_OI: Tensor, x_NI: Tensor, group_size: int) -> Tensor:
    """The share of each group's range [O, G] that gives the smallest squared error of the products with `x_NI`.

    The error of weights d is d C d, where C [M, M] is the sum over rows of the products of a group's inputs.
    """
    x_GNM = in_groups(x_NI, group_size).transpose(0, 1)
    moments_GMM = x_GNM.transpose(1, 2) @ x_GNM
    plain_OGM = in_groups(weight_OI, group_size)
    best_OG = torch.ones(plain_OGM.shape[:2])
    least_OG = torch.full_like(best_OG, torch.inf)
    for share in CLIPPING:
        rounded_OGM = in_groups(
            dequantise(to_groups(weight_OI, group_size, torch.full_like(best_OG, share))), group_size
        )
        off_GOM = (rounded_OGM - plain_OGM).transpose(0, 1)
        error_OG = ((off_GOM @ moments_GMM) * off_GOM).sum(-1).t()
        best_OG = torch.where(error_OG < least_OG, share, best_OG)
        least_OG = torch.minimum(error_OG, least_OG)
    return best_OG
