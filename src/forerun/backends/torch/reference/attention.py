"""Tree attention: every row attends only to the whole prefix and its ancestors in the tree.

Legend: T rows, Q query heads, K key/value heads, G = Q / K, S slots, W tree slots, D head size.
"""

import torch
from torch import Tensor
from torch.nn import functional

from forerun.backends.torch.ops import TreeMask


def prepare_mask(mask: TreeMask, *, group: int, like: Tensor) -> list[Tensor]:
    """For each row the slots it attends to, in text order: the prefix, then the ancestors from the root down."""
    return [visible_slots(mask, row, device=like.device) for row in range(mask.num_rows)]


def visible_slots(mask: TreeMask, row: int, *, device: torch.device) -> Tensor:
    if mask.ancestry_TW is None:
        return torch.arange(mask.num_slots - mask.num_rows + row + 1, device=device)
    own = mask.prefix_len + mask.ancestry_TW[row].nonzero()[:, 0]
    return torch.cat((torch.arange(mask.prefix_len, device=device), own))


def tree_attention(q_TQD: Tensor, keys_SKD: Tensor, values_SKD: Tensor, mask: list[Tensor]) -> Tensor:
    """Attend row by row over gathered keys.

    A row's keys have the same order and number as in plain decoding, even if siblings lie between them in the cache, so
    its result has the same bits.

    Args:
        q_TQD: queries of T new rows.
        keys_SKD, values_SKD: all S filled slots.
        mask: the result of `prepare_mask`.

    Returns:
        [T, Q * D]
    """
    num_kv_heads = keys_SKD.shape[1]
    outputs = []
    for q_QD, slots in zip(q_TQD, mask, strict=True):
        keys_1KSD = keys_SKD.index_select(0, slots).transpose(0, 1)[None]
        values_1KSD = values_SKD.index_select(0, slots).transpose(0, 1)[None]
        q_1KGD = q_QD.clone().reshape(1, num_kv_heads, -1, q_QD.shape[-1])  # same alignment for every row
        outputs.append(functional.scaled_dot_product_attention(q_1KGD, keys_1KSD, values_1KSD).reshape(1, -1))
    return torch.cat(outputs)
