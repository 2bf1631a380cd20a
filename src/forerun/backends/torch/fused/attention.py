"""Tree attention in one call for all rows; same contract as the reference.

Query heads that share a key head are folded into rows, so that keys are read once and never repeated in memory.

Legend: T rows, Q query heads, K key/value heads, G = Q / K, S slots, W tree slots, D head size.
"""

import torch
from torch import Tensor
from torch.nn import functional

from forerun.backends.torch.ops import TreeMask


def prepare_mask(mask: TreeMask, *, group: int, like: Tensor) -> Tensor | None:
    """[T * G, S]: 0 where a row may attend, minus infinity elsewhere, each row repeated for its group of heads.

    None if a single row attends to everything, as in plain decoding.
    """
    ancestry_TW, prefix_len = mask.ancestry_TW, mask.prefix_len
    if ancestry_TW is None:
        if mask.num_rows == 1:
            return None
        ancestry_TW = torch.ones(mask.num_rows, mask.num_rows, dtype=torch.bool, device=like.device).tril_()
        prefix_len = mask.num_slots - mask.num_rows
    bias_TS = like.new_zeros(mask.num_rows, mask.num_slots)
    bias_TS[:, prefix_len:].masked_fill_(~ancestry_TW, float("-inf"))
    if group == 1:
        return bias_TS
    return bias_TS[:, None].expand(-1, group, -1).reshape(-1, mask.num_slots)


def tree_attention(q_TQD: Tensor, keys_SKD: Tensor, values_SKD: Tensor, mask: Tensor | None) -> Tensor:
    """See the reference for arguments and result."""
    num_rows, num_heads, head_dim = q_TQD.shape
    num_kv_heads = keys_SKD.shape[1]
    keys_1KSD, values_1KSD = keys_SKD.transpose(0, 1)[None], values_SKD.transpose(0, 1)[None]
    if num_rows == 1:
        q_1KGD = q_TQD.reshape(1, num_kv_heads, -1, head_dim)
        if is_slow_alone(q_1KGD):
            q_1KGD = q_1KGD.repeat(1, 1, 2, 1)
        mixed = functional.scaled_dot_product_attention(q_1KGD, keys_1KSD, values_1KSD, mask)
        return mixed[:, :, : num_heads // num_kv_heads].reshape(1, num_heads * head_dim)
    q_TKGD = q_TQD.reshape(num_rows, num_kv_heads, -1, head_dim)
    q_1KRD = q_TKGD.transpose(0, 1).reshape(1, num_kv_heads, -1, head_dim)
    mixed = functional.scaled_dot_product_attention(q_1KRD, keys_1KSD, values_1KSD, mask)
    return mixed.view(num_kv_heads, num_rows, -1, head_dim).transpose(0, 1).reshape(num_rows, num_heads * head_dim)


def is_slow_alone(q_1KGD: Tensor) -> bool:
    """True if torch computes two equal rows faster than one, because it has no fast half-precision vector product."""
    return q_1KGD.shape[2] == 1 and q_1KGD.device.type == "cpu" and q_1KGD.itemsize == 2
