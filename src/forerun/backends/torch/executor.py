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

from forerun.backends.torch.layers import Linear, Norm
from forerun.backends.torch.mask import TreeMask
from forerun.backends.torch.ops import TorchOps
from forerun.core.model_spec import ModelSpec, WeightFormat
from forerun.core.sublayers import all_sublayers
from forerun.model.executor import Observer
from forerun.model.inputs import ForwardInput
from forerun.model.program import Op
from forerun.model.quantise import head_format, quantise
from forerun.model.rope import rope_table
from forerun.model.tree_cache import TreeCache
from forerun.runtime.inference import inference


class Frame:
    """The named buffers of one run, and where its rows stand in the cache."""

    __slots__ = (
        "ancestry", "cos", "end", "first_slot", "gate_up", "gated", "h", "logits", "mask", "mixed", "num_logit_rows",
        "prefix_len", "q", "qkv", "row_skips", "sin", "token_ids", "x",
    )  # fmt: skip
    ancestry: Tensor | None
    cos: Tensor
    end: int
    first_slot: int
    gate_up: Tensor
    gated: Tensor
    h: Tensor
    logits: Tensor
    mask: Any  # what the kernels' prepare_mask made
    mixed: Tensor
    num_logit_rows: int
    prefix_len: int
    q: Tensor
    qkv: Tensor
    row_skips: Tensor | None
    sin: Tensor
    token_ids: Tensor
    x: Tensor


Step = Callable[[Frame], None]


class EagerExecutor:
    """A program bound to weights and a cache. `weights` is emptied while linear layers are packed from it."""

    def __init__(
        self, spec: ModelSpec, program: tuple[Op, ...], weights: dict[str, Tensor], cache: TreeCache, ops: TorchOps,
        weight_format: WeightFormat = "plain",
    ) -> None:  # fmt: skip
        self._spec, self._weights, self._cache, self._ops = spec, weights, cache, ops
        self._format, self._sublayers = weight_format, all_sublayers(spec.num_layers)
        storage = cache.keys_LSKD
        self._device = storage.device
        self._turns_P2D = rope_table(
            spec.rope, spec.head_dim, cache.capacity, dtype=storage.dtype, device=str(storage.device)
        )
        self._steps = [(op, self._bind(op)) for op in program]
        self._steps_without_logits = self._steps[: [op.kind for op in program].index("select_rows")]
        self._no_logits = storage.new_empty(0, spec.vocab_size)

    def run(self, inputs: ForwardInput, observe: Observer | None = None) -> Tensor:
        """Run the program; return logits [num_logit_rows, V] in the model's dtype.

        `observe` sees each op and the buffer it wrote.
        """
        with inference():
            frame = self._open(inputs)
            for op, step in self._chosen(inputs):
                step(frame)
                if observe is not None:
                    observe(op, getattr(frame, op.writes))
            return frame.logits

    def _chosen(self, inputs: ForwardInput) -> Iterable[tuple[Op, Step]]:
        steps = self._steps if inputs.num_logit_rows else self._steps_without_logits
        if not inputs.skipped:
            return steps
        return [(op, step) for op, step in steps if op.sublayer not in inputs.skipped]

    def _open(self, inputs: ForwardInput) -> Frame:
        frame = Frame()
        frame.token_ids = torch.tensor(inputs.token_ids, device=self._device)
        positions = torch.tensor(inputs.positions, device=self._device)
        turns_T2D = self._turns_P2D.index_select(0, positions)
        frame.cos, frame.sin = turns_T2D[:, :1], turns_T2D[:, 1:]
        frame.first_slot, frame.end, frame.prefix_len = inputs.first_slot, inputs.num_slots, inputs.prefix_len
        frame.num_logit_rows = inputs.num_logit_rows
        frame.ancestry = None if inputs.ancestry is None else torch.from_numpy(inputs.ancestry).to(self._device)
        frame.row_skips = None if inputs.row_skips is None else self._gates(inputs.row_skips)
        frame.logits = self._no_logits
        return frame

    def _gates(self, row_skips: NDArray[np.bool_]) -> Tensor:
        num_sublayers = len(self._sublayers)
        assert row_skips.shape[1:] == (num_sublayers,), f"row skips {row_skips.shape}, {num_sublayers} sublayers"
        return torch.tensor(row_skips, device=self._device)

    def _bind(self, op: Op) -> Step:
        match op.kind:
            case "embed":
                return bind_embed(self._weights[op.weights + ".weight"])
            case "mask":
                return bind_mask(self._spec, self._ops, self._cache)
            case "norm":
                return bind_norm(op, self._norm(op.weights))
            case "linear":
                return bind_linear(op, self._linear(op))
            case "linear_add":
                return bind_linear_add(op, self._linear(op), self._sublayers.index(op.sublayer))
            case "rope_append":
                head_norms = self._head_norms(op.weights) if self._spec.qk_norm else None
                return bind_rope_append(op, self._spec, self._cache, self._ops, head_norms)
            case "tree_attention":
                return bind_tree_attention(op, self._cache, self._ops)
            case "silu_mul":
                return bind_silu_mul(op, self._ops)
            case "select_rows":
                return select_rows

    def _norm(self, name: str) -> Norm:
        return self._ops.pack_norm(self._weights.pop(name + ".weight"), self._spec.norm_eps)

    def _head_norms(self, part: str) -> tuple[Norm, Norm]:
        return self._norm(part + "q_norm"), self._norm(part + "k_norm")

    def _linear(self, op: Op) -> Linear:
        """Pack a weight and drop the plain copy, unless the embedding still looks rows up in it."""
        take = self._weights.__getitem__ if op.weights == "embedding" else self._weights.pop
        weight_format = head_format(self._format) if op.sublayer is None else self._format
        weight = quantise(take(op.weights + ".weight"), weight_format)
        return self._ops.pack_linear(weight, self._weights.pop(op.weights + ".bias", None))


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


def bind_norm(op: Op, norm: Norm) -> Step:
    (reads,), writes = op.reads, op.writes

    def normalise(frame: Frame) -> None:
        setattr(frame, writes, norm(getattr(frame, reads)))

    return normalise


def bind_linear(op: Op, linear: Linear) -> Step:
    (reads,), writes = op.reads, op.writes

    def product(frame: Frame) -> None:
        setattr(frame, writes, linear(getattr(frame, reads)))

    return product


def bind_linear_add(op: Op, linear: Linear, sublayer: int) -> Step:
    (reads, residual), writes = op.reads, op.writes

    def product(frame: Frame) -> None:
        before = getattr(frame, residual)
        after = linear(getattr(frame, reads), before)
        if frame.row_skips is not None:
            after = torch.where(frame.row_skips[:, sublayer, None], before, after)
        setattr(frame, writes, after)

    return product


def bind_rope_append(
    op: Op, spec: ModelSpec, cache: TreeCache, ops: TorchOps, head_norms: tuple[Norm, Norm] | None
) -> Step:
    """Split qkv, norm q and k per head where the family does so, turn them, write keys and values into the cache."""
    keys_SKD, values_SKD = cache.keys_LSKD[op.layer], cache.values_LSKD[op.layer]
    num_heads, num_turned, head_dim = spec.num_heads, spec.num_heads + spec.num_kv_heads, spec.head_dim
    num_all, rotate = num_turned + spec.num_kv_heads, ops.rotate

    def rope_append(frame: Frame) -> None:
        qkv_TND = frame.qkv.view(-1, num_all, head_dim)
        turned_TND = qkv_TND[:, :num_turned]
        if head_norms is not None:
            turned_TND = norm_heads(turned_TND, num_heads, head_norms)
        turned_TND = rotate(turned_TND, frame.cos, frame.sin)
        keys_SKD[frame.first_slot : frame.end] = turned_TND[:, num_heads:]
        values_SKD[frame.first_slot : frame.end] = qkv_TND[:, num_turned:]
        frame.q = turned_TND[:, :num_heads]

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


def bind_silu_mul(op: Op, ops: TorchOps) -> Step:
    (reads,), writes, multiply = op.reads, op.writes, ops.silu_mul

    def silu_mul(frame: Frame) -> None:
        setattr(frame, writes, multiply(getattr(frame, reads)))

    return silu_mul


def select_rows(frame: Frame) -> None:
    frame.x = frame.x[-frame.num_logit_rows :]
