"""Texts the target writes itself, many at a time: what the draft will have to guess, with the target's own logits.

Legend: B texts, T tokens, V vocabulary, N heads, D head size.
"""

import torch
from torch import Tensor
from torch.nn import functional

from training.network import Block, Network, rotate


@torch.no_grad()
def write_texts(network: Network, prompts_BT: Tensor, num_new: int, temperatures_B: Tensor) -> tuple[Tensor, Tensor]:
    """Continue each prompt by `num_new` tokens, at temperature 0 (greedy) or 1 (drawn from the model).

    Returns:
        ids [B, T + num_new], and the logits [B, num_new, V] each new token was chosen from.
    """
    caches: list[list[Tensor]] = [[] for _ in network.blocks]
    ids_BT, logits, rows = prompts_BT, [], prompts_BT
    for _ in range(num_new):
        start = ids_BT.shape[1] - rows.shape[1]
        logits_BV = forward_cached(network, rows, start, caches)
        noise_BV = -torch.empty_like(logits_BV).exponential_().log()
        rows = (logits_BV + temperatures_B[:, None] * noise_BV).argmax(-1, keepdim=True)
        ids_BT = torch.cat((ids_BT, rows), 1)
        logits.append(logits_BV)
    return ids_BT, torch.stack(logits, 1)


def forward_cached(network: Network, ids_BT: Tensor, start: int, caches: list[list[Tensor]]) -> Tensor:
    """Run tokens at positions start, start + 1, ...; return the last one's logits [B, V]."""
    length = ids_BT.shape[1]
    cos_TD, sin_TD = network.cos[start : start + length], network.sin[start : start + length]
    with torch.autocast("cpu", torch.bfloat16):
        x_BTH = network.embedding(ids_BT)
        for block, cache in zip(network.blocks, caches, strict=True):
            x_BTH = x_BTH + attend_cached(block, x_BTH, cos_TD, sin_TD, cache)
            y_BTH = functional.rms_norm(x_BTH, x_BTH.shape[-1:], block.mlp_norm, block.shape.norm_eps)
            x_BTH = x_BTH + block.down(functional.silu(block.gate(y_BTH)) * block.up(y_BTH))
        x_BH = functional.rms_norm(x_BTH[:, -1], x_BTH.shape[-1:], network.norm, network.shape.norm_eps)
        return functional.linear(x_BH, network.embedding.weight).float()


def attend_cached(block: Block, x_BTH: Tensor, cos_TD: Tensor, sin_TD: Tensor, cache: list[Tensor]) -> Tensor:
    """One block's attention; `cache` holds its keys and values [B, N, T, D] and grows by the new tokens."""
    batch, length, width = x_BTH.shape
    y_BTH = functional.rms_norm(x_BTH, (width,), block.attention_norm, block.shape.norm_eps)
    q, k, v = (
        layer(y_BTH).view(batch, length, -1, block.shape.head_dim).transpose(1, 2)
        for layer in (block.q, block.k, block.v)
    )
    q, k = rotate(q, cos_TD, sin_TD), rotate(k, cos_TD, sin_TD)
    if cache:
        k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
    cache[:] = [k, v]
    repeats = block.shape.num_heads // block.shape.num_kv_heads
    mixed = functional.scaled_dot_product_attention(
        q, k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1), is_causal=length > 1
    )
    return block.o(mixed.transpose(1, 2).reshape(batch, length, -1))
