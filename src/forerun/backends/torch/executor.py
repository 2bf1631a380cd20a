"""The eager executor: runs a program op by op with torch calls.

Legend: T rows, H hidden size, Q query heads, K key/value heads, D head size, V vocabulary.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from forerun.backends.bind import bind_weights
from forerun.backends.torch.ops import Norm, TorchOps, TreeMask
from forerun.core.model_spec import ModelSpec
from forerun.core.sublayers import all_sublayers
from forerun.model.executor import Observer
from forerun.model.inputs import ForwardInput
from forerun.model.outputs import ForwardOutput
from forerun.model.program import NUM_HEAD_OPS, Op
from forerun.model.quantise import as_plain
from forerun.model.rank_group import RankGroup
from forerun.model.tree_cache import TreeCache
from forerun.model.weights import WeightSource
from forerun.runtime.inference import inference


class Frame:
    """The named buffers of one run, and the positions of its rows in the cache."""

    ancestry: Tensor | None
    cos: Tensor
    end: int
    features: Tensor
    first_slot: int
    gate_up: Tensor
    gated: Tensor
    h: Tensor
    logits: Tensor
    mask: Any  # the result of the kernels' prepare_mask
    mixed: Tensor
    partial: Tensor
    num_logit_rows: int
    prefix_len: int
    q: Tensor
    qkv: Tensor
    row_skips: Tensor | None
    sin: Tensor
    token_ids: Tensor
    x: Tensor


Step = Callable[[Frame], None]
Add = Callable[[Tensor, Tensor], Tensor]  # a sublayer's features and the residual stream to the new stream


class EagerExecutor:
    """A program bound to weights and a cache."""

    def __init__(
        self,
        spec: ModelSpec,
        program: tuple[Op, ...],
        weights: WeightSource,
        cache: TreeCache,
        ops: TorchOps,
        group: RankGroup | None = None,
    ) -> None:
        self._spec, self._cache, self._ops, self._group = spec, cache, ops, group
        self._sublayers = all_sublayers(spec.num_layers)
        storage = cache.keys_LSKD
        self._device = storage.device
        self._bound = bind_weights(
            spec,
            program,
            weights,
            cache=cache,
            rope_dtype=storage.dtype,
            pack_linear=lambda _, weight, bias_O: ops.pack_linear(weight, bias_O),
            pack_norm=lambda weight_H: ops.pack_norm(weight_H, spec.norm_eps),
        )
        self._steps = [(op, self._bind(op)) for op in program]
        self._untapped = [(op, step) for op, step in self._steps if op.kind != "tap"]
        self._no_logits = storage.new_empty(0, spec.vocab_size)
        self._no_features = storage.new_empty(0)

    def run(self, inputs: ForwardInput, observe: Observer | None = None) -> ForwardOutput:
        """Run the program; logits and features have the model's dtype. `observe` gets each op and its output."""
        with inference():
            frame = self._open(inputs)
            for op, step in self._chosen(inputs):
                step(frame)
                if observe is not None:
                    observe(op, getattr(frame, op.writes))
            return ForwardOutput(logits=frame.logits, features=frame.features if inputs.taps else None)

    def _chosen(self, inputs: ForwardInput) -> Iterable[tuple[Op, Step]]:
        steps = self._steps if inputs.taps else self._untapped
        if not inputs.num_logit_rows:
            steps = steps[:-NUM_HEAD_OPS]
        if not inputs.skipped and not inputs.taps:
            return steps
        return [(op, step) for op, step in steps if op.is_part_of(inputs.skipped, inputs.taps)]

    def _open(self, inputs: ForwardInput) -> Frame:
        frame = Frame()
        frame.token_ids = torch.tensor(inputs.token_ids, device=self._device)
        positions = torch.tensor(inputs.positions, device=self._device)
        cos_sin_T2D = self._bound.cos_sin_P2D.index_select(0, positions)
        frame.cos, frame.sin = cos_sin_T2D[:, :1], cos_sin_T2D[:, 1:]
        frame.first_slot, frame.end, frame.prefix_len = inputs.first_slot, inputs.num_slots, inputs.prefix_len
        frame.num_logit_rows = inputs.num_logit_rows
        frame.ancestry = None if inputs.ancestry is None else torch.from_numpy(inputs.ancestry).to(self._device)
        frame.row_skips = None if inputs.row_skips is None else self._gates(inputs.row_skips)
        frame.logits, frame.features = self._no_logits, self._no_features
        return frame

    def _gates(self, row_skips: NDArray[np.bool_]) -> Tensor:
        num_sublayers = len(self._sublayers)
        assert row_skips.shape[1:] == (num_sublayers,), f"row skips {row_skips.shape}, {num_sublayers} sublayers"
        return torch.tensor(row_skips, device=self._device)

    def _bind(self, op: Op) -> Step:
        match op.kind:
            case "embed":
                return bind_embed(as_plain(self._bound.table))
            case "mask":
                return bind_mask(self._spec, self._ops, self._cache)
            case "norm":
                return bind_unary(op, self._bound.norms[op.weights])
            case "linear":
                return bind_unary(op, self._bound.linears[op.weights])
            case "linear_add":
                return bind_add(op, self._bound.linears[op.weights], self._sublayers.index(op.sublayer))
            case "add_partials":
                assert self._group is not None, "partial products of a model that is not shared"
                return bind_add(op, self._group.add_partials, self._sublayers.index(op.sublayer))
            case "rope_append":
                return bind_rope_append(op, self._spec, self._cache, self._ops, self._bound.head_norms.get(op.weights))
            case "tree_attention":
                return bind_tree_attention(op, self._cache, self._ops)
            case "silu_mul":
                return bind_unary(op, self._ops.silu_mul)
            case "tap":
                return tap
            case "select_rows":
                return select_rows


def bind_embed(table_VH: Tensor) -> Step:
    def embed(frame: Frame) -> None:
        frame.x = functional.embedding(frame.token_ids, table_VH)

    return embed


def bind_mask(spec: ModelSpec, ops: TorchOps, cache: TreeCache) -> Step:
    group, like, prepare_mask = spec.num_heads // spec.num_kv_heads, cache.keys_LSKD, ops.prepare_mask

    def mask(frame: Frame) -> None:
        tree = TreeMask(
            num_rows=frame.end - frame.first_slot,
            num_slots=frame.end,
            prefix_len=frame.prefix_len,
            ancestry_TW=frame.ancestry,
        )
        frame.mask = prepare_mask(tree, group=group, like=like)

    return mask


def bind_unary(op: Op, function: Callable[[Tensor], Tensor]) -> Step:
    """A norm, a product, or silu(gate) * up."""
    (reads,), writes = op.reads, op.writes

    def unary(frame: Frame) -> None:
        setattr(frame, writes, function(getattr(frame, reads)))

    return unary


def bind_add(op: Op, add: Add, sublayer: int) -> Step:
    """The addition of a sublayer's output to the residual stream, except for rows that skip the sublayer."""
    (reads, residual), writes = op.reads, op.writes

    def sum_up(frame: Frame) -> None:
        before = getattr(frame, residual)
        after = add(getattr(frame, reads), before)
        if frame.row_skips is not None:
            after = torch.where(frame.row_skips[:, sublayer, None], before, after)
        setattr(frame, writes, after)

    return sum_up


def bind_rope_append(
    op: Op, spec: ModelSpec, cache: TreeCache, ops: TorchOps, head_norms: tuple[Norm, Norm] | None
) -> Step:
    """Split qkv, norm q and k per head if the family does so, rotate them, write keys and values into the cache."""
    keys_SKD, values_SKD = cache.keys_LSKD[op.layer], cache.values_LSKD[op.layer]
    num_heads, num_rotated, head_dim = spec.num_heads, spec.num_heads + spec.num_kv_heads, spec.head_dim
    num_all, rotate = num_rotated + spec.num_kv_heads, ops.rotate

    def rope_append(frame: Frame) -> None:
        qkv_TND = frame.qkv.view(-1, num_all, head_dim)
        rotated_TND = qkv_TND[:, :num_rotated]
        if head_norms is not None:
            rotated_TND = norm_heads(rotated_TND, num_heads, head_norms)
        rotated_TND = rotate(rotated_TND, frame.cos, frame.sin)
        keys_SKD[frame.first_slot : frame.end] = rotated_TND[:, num_heads:]
        values_SKD[frame.first_slot : frame.end] = qkv_TND[:, num_rotated:]
        frame.q = rotated_TND[:, :num_heads]

    return rope_append


def norm_heads(heads_TND: Tensor, num_heads: int, head_norms: tuple[Norm, Norm]) -> Tensor:
    """Qwen3: an RMS norm of each query head and of each key head, before the rotation."""
    norm_q, norm_k = head_norms
    return torch.cat((norm_q(heads_TND[:, :num_heads]), norm_k(heads_TND[:, num_heads:])), 1)


def bind_tree_attention(op: Op, cache: TreeCache, ops: TorchOps) -> Step:
    keys_SKD, values_SKD = cache.keys_LSKD[op.layer], cache.values_LSKD[op.layer]
    attend = ops.tree_attention

    def tree_attention(frame: Frame) -> None:
        frame.mixed = attend(frame.q, keys_SKD[: frame.end], values_SKD[: frame.end], frame.mask)

    return tree_attention


def tap(frame: Frame) -> None:
    x_T1H = frame.x[:, None]
    frame.features = torch.cat((frame.features, x_T1H), 1) if frame.features.numel() else x_T1H


def select_rows(frame: Frame) -> None:
    frame.x = frame.x[-frame.num_logit_rows :]
