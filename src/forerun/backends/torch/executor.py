"""The eager executor: runs a program op by op with torch calls.

Legend: T rows, H hidden size, Q query heads, K key/value heads, D head size, V vocabulary.
"""

from collections.abc import Callable, Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from forerun.backends.bind import bind_weights
from forerun.backends.torch.attention_steps import bind_mask, bind_rope_append, bind_tree_attention, norm_whole
from forerun.backends.torch.expert_steps import bind_experts, relu2
from forerun.backends.torch.frame import Frame, Step
from forerun.backends.torch.mixer_steps import (
    bind_convolve,
    bind_delta_net,
    bind_gated_convolution,
    bind_mamba,
    sigmoid_mul,
)
from forerun.backends.torch.ops import Linear, Norm, TorchOps
from forerun.core.mixers import GatedDeltaNet, Mamba2, ShortConvolution
from forerun.core.model_spec import ModelSpec
from forerun.core.sublayers import all_sublayers
from forerun.core.threads import inference
from forerun.model.executor import ForwardInput, ForwardOutput, ModelExecutor, Observer
from forerun.model.program import NUM_HEAD_OPS, Op
from forerun.model.quantise import as_plain
from forerun.model.rank_group import RankGroup
from forerun.model.tree_cache import TreeCache
from forerun.model.weights import WeightSource

Add = Callable[..., Tensor]  # a sublayer's features and the residual stream to the new stream


class EagerExecutor(ModelExecutor):
    """A program bound to weights and a cache."""

    def __init__(
        self,
        spec: ModelSpec,
        program: tuple[Op, ...],
        weights: WeightSource,
        cache: TreeCache,
        ops: TorchOps,
        group: RankGroup | None,
    ) -> None:
        self._spec = spec
        self._cache = cache
        self._ops = ops
        self._group = group
        self._sublayers = all_sublayers(spec.num_layers)
        self._device = torch.device(cache.device)
        self._bound = bind_weights(
            spec,
            program,
            weights,
            cache=cache,
            rope_dtype=cache.dtype,
            pack_linear=lambda _, weight, bias_O: ops.pack_linear(weight, bias_O),
            pack_norm=lambda weight_H: ops.pack_norm(weight_H, spec.norm_eps),
        )
        self._table_VH = as_plain(self._bound.table)
        self._head = self._bound.linears[program[-1].weights]
        self._steps = [(op, self._bind(op)) for op in program]
        self._untapped = [(op, step) for op, step in self._steps if op.kind != "tap"]
        self._no_logits = torch.empty(0, spec.vocab_size, dtype=cache.dtype, device=cache.device)
        self._no_features = torch.empty(0, dtype=cache.dtype, device=cache.device)

    def run(self, inputs: ForwardInput, observe: Observer | None = None) -> ForwardOutput:
        """Run the program; logits and features have the model's dtype. `observe` gets each op and its output."""
        with inference():
            frame = self._open(inputs)
            for op, step in self._chosen(inputs):
                step(frame)
                if observe is not None:
                    observe(op, getattr(frame, op.writes))
            return ForwardOutput(logits=frame.logits, features=frame.features if inputs.taps else None)

    def embed(self, token_ids: Tensor) -> Tensor:
        return functional.embedding(token_ids, self._table_VH)

    def output(self) -> Callable[[Tensor], Tensor] | None:
        head = self._head
        dtype = self._no_logits.dtype
        return None if self._group is not None else lambda rows: head(rows.to(dtype)).to(rows.dtype)

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
        frame.rotations = {
            rope: (table_P2D[positions, :1], table_P2D[positions, 1:])
            for rope, table_P2D in self._bound.rotations.items()
        }
        frame.query_scales = {
            head_dim: None if scales_P is None else scales_P[positions, None, None]
            for head_dim, scales_P in self._bound.query_scales.items()
        }
        frame.first_slot = inputs.first_slot
        frame.end = inputs.num_slots
        frame.prefix_len = inputs.prefix_len
        frame.num_logit_rows = inputs.num_logit_rows
        frame.ancestry = None if inputs.ancestry is None else torch.from_numpy(inputs.ancestry).to(self._device)
        frame.row_skips = None if inputs.row_skips is None else self._gates(inputs.row_skips)
        frame.logits = self._no_logits
        frame.features = self._no_features
        return frame

    def _gates(self, row_skips: NDArray[np.bool_]) -> Tensor:
        num_sublayers = len(self._sublayers)
        assert row_skips.shape[1:] == (num_sublayers,), f"row skips {row_skips.shape}, {num_sublayers} sublayers"
        return torch.tensor(row_skips, device=self._device)

    def _bind(self, op: Op) -> Step:
        match op.kind:
            case "embed":
                return bind_embed(self._table_VH, self._bound.embedding_scale)
            case "mask":
                return bind_mask(self._spec, self._ops, self._cache)
            case "norm":
                return bind_unary(op, self._bound.norms[op.weights])
            case "norm_qk":
                return bind_unary(op, norm_whole(self._spec, self._bound.head_norms[op.weights], self._group))
            case "norm_add":
                norm = self._bound.norms[op.weights]
                number = None if op.sublayer is None else self._sublayers.index(op.sublayer)
                return bind_add(op, lambda branch, x: x + norm(branch), number)
            case "add":
                return bind_add(op, lambda branch, x: x + branch, self._sublayers.index(op.sublayer))
            case "layer_inputs":
                assert self._bound.layer_table is not None, "a table of the embeddings for each layer"
                table = as_plain(self._bound.layer_table)
                scale = self._bound.layer_table_scale
                return bind_layer_inputs(self._spec, table, scale, self._bound.norms[op.weights])
            case "gate_input":
                return bind_gate_input(op)
            case "linear":
                return bind_unary(op, self._capped(op, self._bound.linears[op.weights]))
            case "scale":
                scale = self._bound.scales[op.weights]
                return bind_unary(op, lambda x: x * scale)
            case "experts":
                correction_E = self._bound.corrections.get(op.weights)
                experts = bind_experts(self._spec, self._ops, self._bound.experts[op.weights], correction_E)
                return bind_add(op, experts, self._sublayers.index(op.sublayer))
            case "linear_add":
                return bind_add(op, self._bound.linears[op.weights], self._sublayers.index(op.sublayer))
            case "add_partials":
                assert self._group is not None, "partial products of a model that is not shared"
                return bind_add(op, self._group.add_partials, self._sublayers.index(op.sublayer))
            case "sum_partials":
                assert self._group is not None, "partial products of a model that is not shared"
                add = self._group.add_partials
                return bind_unary(op, lambda partial: add(partial, torch.zeros_like(partial)))
            case "rope_append":
                head_norms = self._bound.head_norms[op.weights] if self._spec.qk_norm else None
                return bind_rope_append(op, self._spec, self._cache, self._ops, head_norms)
            case "tree_attention":
                return bind_tree_attention(op, self._spec, self._cache, self._ops, self._bound.sinks.get(op.weights))
            case "sigmoid_mul":
                return bind_binary(op, sigmoid_mul)
            case "convolve" | "gated_convolution" | "delta_net" | "mamba":
                return self._bind_mixer(op)
            case "silu_mul":
                return bind_unary(op, self._ops.silu_mul)
            case "gelu_mul":
                return bind_unary(op, self._ops.gelu_mul)
            case "relu2":
                return bind_unary(op, relu2)
            case "tap":
                return tap
            case "select_rows":
                return select_rows

    def _bind_mixer(self, op: Op) -> Step:
        mixer = self._spec.mixer
        rows = self._cache.mixer_rows
        assert mixer is not None and rows is not None, "a layer with a mixer"
        match mixer:
            case ShortConvolution():
                return bind_gated_convolution(mixer, op.layer, rows, self._bound.convolutions[op.weights])
            case GatedDeltaNet() | Mamba2() if op.kind == "convolve":
                return bind_convolve(mixer, op.layer, rows, self._bound.convolutions[op.weights])
            case GatedDeltaNet():
                net = self._bound.nets[op.weights]
                return bind_delta_net(mixer, op.layer, rows, net, self._ops, self._spec.norm_eps)
            case Mamba2():
                return bind_mamba(mixer, op.layer, rows, self._bound.nets[op.weights])

    def _capped(self, op: Op, linear: Linear) -> Callable[[Tensor], Tensor]:
        """The product; of the head, its logits capped if the model caps them."""
        cap = self._spec.logit_cap
        if op.weights != "head" or cap is None:
            return linear
        return lambda x: torch.tanh(linear(x) / cap) * cap


def bind_embed(table_VH: Tensor, scale: float) -> Step:
    def embed(frame: Frame) -> None:
        frame.x = functional.embedding(frame.token_ids, table_VH)

    def embed_scaled(frame: Frame) -> None:
        frame.x = functional.embedding(frame.token_ids, table_VH) * scale

    return embed if scale == 1.0 else embed_scaled


def bind_unary(op: Op, function: Callable[[Tensor], Tensor]) -> Step:
    """A norm, a product, or silu(gate) * up."""
    (reads,) = op.reads
    writes = op.writes

    def unary(frame: Frame) -> None:
        setattr(frame, writes, function(getattr(frame, reads)))

    return unary


def bind_binary(op: Op, function: Callable[[Tensor, Tensor], Tensor]) -> Step:
    """A product of two buffers."""
    first, second = op.reads
    writes = op.writes

    def binary(frame: Frame) -> None:
        setattr(frame, writes, function(getattr(frame, first), getattr(frame, second)))

    return binary


def bind_add(op: Op, add: Add, sublayer: int | None) -> Step:
    """The addition of a sublayer's output to the residual stream, except for rows that skip the sublayer."""
    *reads, residual = op.reads
    writes = op.writes

    def sum_up(frame: Frame) -> None:
        before = getattr(frame, residual)
        after = add(*(getattr(frame, name) for name in reads), before)
        if frame.row_skips is not None and sublayer is not None:
            after = torch.where(frame.row_skips[:, sublayer, None], before, after)
        setattr(frame, writes, after)

    return sum_up


def bind_layer_inputs(spec: ModelSpec, table: Tensor, token_scale: float, norm: Norm) -> Step:
    """Gemma 4 E2B: each layer's embedding of the token, and a projection of the first embedding, as one sum."""
    shape = (-1, spec.num_layers, spec.layer_input_size)
    projection_scale = spec.hidden_size**-0.5

    def layer_inputs(frame: Frame) -> None:
        projected = norm((frame.layer_projection * projection_scale).view(shape))
        of_token = (functional.embedding(frame.token_ids, table) * token_scale).view(shape)
        frame.layer_inputs = (projected + of_token) * 2.0**-0.5

    return layer_inputs


def bind_gate_input(op: Op) -> Step:
    layer = op.layer

    def gate_input(frame: Frame) -> None:
        frame.gate_input = functional.gelu(frame.gate_input, approximate="tanh") * frame.layer_inputs[:, layer]

    return gate_input


def tap(frame: Frame) -> None:
    x_T1H = frame.x[:, None]
    frame.features = torch.cat((frame.features, x_T1H), 1) if frame.features.numel() else x_T1H


def select_rows(frame: Frame) -> None:
    frame.x = frame.x[-frame.num_logit_rows :]
