"""The eager executor's steps of attention: masks, norms of heads, rotation, the append to the cache, and attention.

Legend: T rows, N heads, Q query heads, K key/value heads, D head size, S slots.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from forerun.backends.torch.frame import Frame, Step
from forerun.backends.torch.mixer_steps import paths_of
from forerun.backends.torch.ops import Norm, TorchOps, TreeMask
from forerun.core.model_spec import ModelSpec, RopeSpec
from forerun.model.program import Op
from forerun.model.rank_group import RankGroup
from forerun.model.tree_cache import TreeCache


def bind_mask(spec: ModelSpec, ops: TorchOps, cache: TreeCache) -> Step:
    like = torch.empty(0, dtype=cache.dtype, device=cache.device)
    prepare_mask = ops.prepare_mask
    kinds = {mask_of(spec, layer) for layer in spec.attention_layers}

    def mask(frame: Frame) -> None:
        tree = TreeMask(
            num_rows=frame.end - frame.first_slot,
            num_slots=frame.end,
            prefix_len=frame.prefix_len,
            ancestry_TW=frame.ancestry,
        )
        frame.mask = {
            (window, group): prepare_mask(replace(tree, window=window), group=group, like=like)
            for window, group in kinds
        }
        if spec.mixer is not None and cache.mixer_rows is not None:
            frame.paths = paths_of(tree, spec.mixer, cache.mixer_rows, cache.committed_len, device=like.device)

    return mask


def mask_of(spec: ModelSpec, layer: int) -> tuple[int | None, int]:
    """The values that a layer's mask depends on: its window, and query heads per key head."""
    return spec.window_of(layer), spec.num_heads // spec.of_layer(layer).num_kv_heads


def bind_rope_append(
    op: Op, spec: ModelSpec, cache: TreeCache, ops: TorchOps, head_norms: tuple[Norm, Norm] | None
) -> Step:
    """Split qkv, norm q and k per head if the family does so, rotate them, write keys and values into the cache."""
    if spec.borrows(op.layer):
        return bind_rope(spec.of_layer(op.layer), spec.rope_of(op.layer), ops, head_norms)
    spec, rope = spec.of_layer(op.layer), spec.rope_of(op.layer)
    ones_D = torch.ones(spec.head_dim, dtype=cache.dtype, device=cache.device)
    norm_v = ops.pack_norm(ones_D, spec.norm_eps) if spec.value_norm else None
    num_heads = spec.num_heads
    num_rotated = spec.num_heads + spec.num_kv_heads
    head_dim = spec.head_dim
    num_all = num_rotated + spec.num_kv_heads
    rotate = ops.rotate

    def rope_append(frame: Frame) -> None:
        qkv_TND = frame.qkv.view(-1, num_all, head_dim)
        rotated_TND = qkv_TND[:, :num_rotated]
        if head_norms is not None:
            rotated_TND = norm_heads(rotated_TND, num_heads, head_norms)
        rotated_TND = rotate(rotated_TND, *frame.rotations[rope])
        values_TKD = qkv_TND[:, num_rotated:]
        if norm_v is not None:
            values_TKD = norm_v(values_TKD)
        cache.write(op.layer, frame.first_slot, rotated_TND[:, num_heads:], values_TKD)
        scales = frame.query_scales[head_dim]
        q_TQD = rotated_TND[:, :num_heads]
        frame.q = q_TQD if scales is None else q_TQD * scales

    return rope_append


def bind_rope(spec: ModelSpec, rope: RopeSpec | None, ops: TorchOps, head_norms: tuple[Norm, Norm] | None) -> Step:
    """As `bind_rope_append`, for a layer that has only queries."""
    head_dim = spec.head_dim
    rotate = ops.rotate

    def rope_queries(frame: Frame) -> None:
        q_TQD = frame.qkv.view(-1, spec.num_heads, head_dim)
        q_TQD = rotate(q_TQD if head_norms is None else head_norms[0](q_TQD), *frame.rotations[rope])
        scales = frame.query_scales[head_dim]
        frame.q = q_TQD if scales is None else q_TQD * scales

    return rope_queries


def norm_heads(heads_TND: Tensor, num_heads: int, head_norms: tuple[Norm, Norm]) -> Tensor:
    """Qwen3: an RMS norm of each query head and of each key head, before the rotation."""
    norm_q, norm_k = head_norms
    return torch.cat((norm_q(heads_TND[:, :num_heads]), norm_k(heads_TND[:, num_heads:])), 1)


def norm_whole(spec: ModelSpec, norms: tuple[Norm, Norm], group: RankGroup | None) -> Callable[[Tensor], Tensor]:
    """OLMo 2: an RMS norm over all queries together and one over all keys, of all ranks."""
    norm_q, norm_k = norms
    sizes = [spec.q_size, spec.kv_size, spec.kv_size]
    totals = spec.qk_norm_totals

    def norm_qk(qkv: Tensor) -> Tensor:
        q, k, v = torch.split(qkv, sizes, -1)
        return torch.cat((norm_q(q), norm_k(k), v), -1)

    def norm_part(qkv: Tensor) -> Tensor:
        assert group is not None and totals is not None, "a part of a model has the sizes of the whole"
        q, k, v = torch.split(qkv, sizes, -1)
        wide = torch.promote_types(qkv.dtype, torch.float32)
        own_T2 = torch.stack([part.to(wide).square().sum(-1) for part in (q, k)], -1)
        all_T2 = group.add_partials(own_T2, torch.zeros_like(own_T2))
        means = all_T2 / all_T2.new_tensor(totals)
        own_means = own_T2 / own_T2.new_tensor(sizes[:2])
        ratio_T2 = ((own_means + spec.norm_eps) / (means + spec.norm_eps)).sqrt()  # to a part's own result
        q = (norm_q(q) * ratio_T2[:, :1]).to(qkv.dtype)
        k = (norm_k(k) * ratio_T2[:, 1:]).to(qkv.dtype)
        return torch.cat((q, k, v), -1)

    return norm_qk if totals is None else norm_part


def bind_tree_attention(op: Op, spec: ModelSpec, cache: TreeCache, ops: TorchOps, sinks_Q: Tensor | None) -> Step:
    layer = spec.cached_layer(op.layer)
    attend = ops.tree_attention
    mask = mask_of(spec, op.layer)

    def tree_attention(frame: Frame) -> None:
        frame.mixed = attend(frame.q, *cache.read(layer, frame.end), frame.mask[mask], sinks_Q)

    return tree_attention
