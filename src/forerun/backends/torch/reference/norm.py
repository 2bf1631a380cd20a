"""x / sqrt(mean(x^2) + eps) * weight, the mean in float32 or better. Source: arXiv 1910.07467."""

import torch
from torch import Tensor

from forerun.backends.torch.ops import Norm


def pack_norm(weight_H: Tensor, eps: float) -> Norm:
    """Return the RMS norm over the last dimension of x [..., H]."""

    def norm(x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return scaled.to(x.dtype) * weight_H

    return norm
