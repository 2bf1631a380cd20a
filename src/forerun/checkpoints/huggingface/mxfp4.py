"""MXFP4 weights of safetensors, such as gpt-oss's experts, as blocks of GGUF's type MXFP4: packed, with equal values.

Both have 32 values of 4 bits to a scale 2^(e - 127). Safetensors have adjacent values in the nibbles of a byte, the
first in the low one; GGUF has values j and j + 16. Source: integrations/mxfp4 of transformers, ggml-quants.c of
llama.cpp.
"""

from typing import Final

import torch
from torch import Tensor

from forerun.core.errors import CheckpointError
from forerun.model.weights import BlockWeight

NAN: Final = 255  # of an exponent


def mxfp4_weight(blocks_OGB: Tensor, scales_OG: Tensor, dtype: torch.dtype) -> BlockWeight:
    """A weight [O, 32 G] from its tensors `_blocks`, uint8 [O, G, 16], and `_scales`, uint8 [O, G].

    Raises:
        CheckpointError: a scale is NaN; the message does not name the tensor.
    """
    if (scales_OG == NAN).any():
        raise CheckpointError("a scale is NaN, but scales must be finite: fetch the file again")
    values = torch.stack((blocks_OGB & 15, blocks_OGB >> 4), -1).flatten(2)
    halves = values[:, :, :16] | values[:, :, 16:] << 4
    return BlockWeight(
        blocks_OB=torch.cat((scales_OG[:, :, None], halves), 2).flatten(1), block_type="MXFP4", dtype=dtype
    )
