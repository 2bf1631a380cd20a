"""Binds a model's weights to its program: each weight is read once and packed for the backend.

Legend: P positions, D head size.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor

from forerun.core.mixers import GatedDeltaNet
from forerun.core.model_spec import ModelSpec, RopeSpec
from forerun.model.program import Op, products_of_experts
from forerun.model.rope import query_scales, rope_table
from forerun.model.tree_cache import TreeCache
from forerun.model.weights import Table, Weight, WeightSource

LinearT = TypeVar("LinearT")
NormT = TypeVar("NormT")
Experts: TypeAlias = Sequence[tuple[LinearT, LinearT]]
FINAL_NORM: Final = "final_norm"
LAYER_TABLE: Final = "layer_table"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConvolutionWeights:
    """Of convolve and gated_convolution; C channels, K rows that it reads, in the order of the text.

    Args:
        bias_C: or None.
    """

    taps_CK: Tensor
    bias_C: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NetWeights:
    """Of delta_net and mamba; H value heads of size V.

    Args:
        rates_H: factors of a row's decay, below 0.
        bias_H: is added to the decay's input.
        scale_V: factor of each head's normalised output; of mamba that of the whole output, [H * V].
        skips_H: factors with which mamba adds a row's values to its output; None for delta_net.
    """

    rates_H: Tensor
    bias_H: Tensor
    scale_V: Tensor
    skips_H: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoundWeights(Generic[LinearT, NormT]):
    """The constant inputs of a program, by the names in `Op.weights`.

    Args:
        linears: weights of linear and linear_add.
        norms: weights of norm.
        experts: gate and up, and the last product, of each expert of an op, or as `join_experts` holds them.
        corrections: numbers [E] for the choice of experts, in float32 or better, see `SigmoidRouting`.
        sinks: the scores [Q] of tree_attention's sinks, in the dtype of norms; empty if the model has none.
        head_norms: norms of query heads and of key heads, for rope_append; empty if the model family has none.
        table: the embedding.
        rotations: cosines and sines of each rotation, see `model.rope.rope_table`; the key None is for layers without a
            rotation.
        query_scales: by head size: factors [P] of queries by their position, or None, see `model.rope.query_scales`.
        scales: factors of the residual stream, of scale.
        layer_table: the embeddings for each layer [V, L * P], or None; `layer_table_scale` is their factor.
        embedding_scale: factor of the embedding, or 1.
        convolutions, nets: of layers with a mixer, in float32 or better.
    """

    linears: Mapping[str, LinearT]
    norms: Mapping[str, NormT]
    experts: Mapping[str, Experts[LinearT]]
    corrections: Mapping[str, Tensor]
    sinks: Mapping[str, Tensor]
    head_norms: Mapping[str, tuple[NormT, NormT]]
    table: Table
    rotations: Mapping[RopeSpec | None, Tensor]
    query_scales: Mapping[int, Tensor | None]
    scales: Mapping[str, float]
    layer_table: Weight | None
    layer_table_scale: float
    embedding_scale: float
    convolutions: Mapping[str, ConvolutionWeights]
    nets: Mapping[str, NetWeights]


def bind_weights(
    spec: ModelSpec,
    program: Sequence[Op],
    weights: WeightSource,
    *,
    cache: TreeCache,
    pack_linear: Callable[[Op, Weight, Tensor | None], LinearT],
    pack_norm: Callable[[Tensor], NormT],
    rope_dtype: torch.dtype = torch.float32,
    join_experts: Callable[[Experts[LinearT]], Experts[LinearT]] = lambda experts: experts,
) -> BoundWeights[LinearT, NormT]:
    """Pack the weights that the ops of `program` need; other weights are not read."""
    device = cache.device
    num_positions = cache.capacity

    def norm_of(name: str) -> NormT:
        return pack_norm(scaled_norm(spec, name, weights.vector(name)))

    def norms_of_heads(op: Op) -> tuple[NormT, NormT]:
        queries = norm_of(op.weights + "q_norm")
        return queries, queries if spec.borrows(op.layer) else norm_of(op.weights + "k_norm")  # a borrower has no keys

    def packed(op: Op) -> LinearT:
        return pack_linear(op, *weights.linear(op.weights))

    def wide(name: str) -> Tensor:
        vector = weights.vector(name)
        return vector.to(torch.promote_types(vector.dtype, torch.float32))

    has_bias = spec.mixer is not None and not isinstance(spec.mixer, GatedDeltaNet) and spec.mixer.has_bias
    has_correction = spec.routing is not None and spec.routing.has_correction
    return BoundWeights(
        convolutions={
            op.weights: ConvolutionWeights(
                taps_CK=wide(op.weights).flatten(1), bias_C=wide(f"{op.weights}_bias") if has_bias else None
            )
            for op in program
            if op.kind in ("convolve", "gated_convolution")
        },
        nets={
            op.weights: NetWeights(
                rates_H=wide(f"{op.weights}_rates"),
                bias_H=wide(f"{op.weights}_bias"),
                scale_V=wide(f"{op.weights}_scale"),
                skips_H=wide(f"{op.weights}_skips") if op.kind == "mamba" else None,
            )
            for op in program
            if op.kind in ("delta_net", "mamba")
        },
        corrections={
            op.weights: wide(f"layers.{op.layer}.router_correction")
            for op in program
            if op.kind == "experts" and has_correction
        },
        experts={
            op.weights: join_experts(
                [(packed(gate_up), packed(out)) for gate_up, out in products_of_experts(op, spec.num_experts)]
            )
            for op in program
            if op.kind == "experts"
        },
        sinks={op.weights: weights.vector(op.weights) for op in program if op.kind == "tree_attention" and op.weights},
        linears={op.weights: packed(op) for op in program if "linear" in op.kind},
        norms={op.weights: norm_of(op.weights) for op in program if op.kind in ("norm", "norm_add", "layer_inputs")},
        head_norms={op.weights: norms_of_heads(op) for op in program if norms_heads(op, spec)},
        table=weights.table(),
        rotations={
            rope: rope_table(rope, head_dim, num_positions, dtype=rope_dtype, device=device)
            for rope, head_dim in head_sizes(spec).items()
        },
        query_scales={
            one.head_dim: query_scales(one, num_positions, dtype=rope_dtype, device=device)
            for one in map(spec.of_layer, range(spec.num_layers))
        },
        layer_table=weights.linear(LAYER_TABLE)[0] if spec.layer_input_size else None,
        layer_table_scale=rounded(spec.layer_input_size**0.5, cache.dtype),
        scales={op.weights: float(weights.vector(op.weights)) for op in program if op.kind == "scale"},
        embedding_scale=embedding_scale(spec, cache.dtype),
    )


def norms_heads(op: Op, spec: ModelSpec) -> bool:
    """Whether an op has norms of query heads and key heads."""
    return op.kind == "norm_qk" or (op.kind == "rope_append" and spec.qk_norm)


def head_sizes(spec: ModelSpec) -> dict[RopeSpec | None, int]:
    """The head size of each rotation."""
    found: dict[RopeSpec | None, int] = {}
    for layer in range(spec.num_layers):
        rope = spec.rope_of(layer)
        head_dim = spec.of_layer(layer).head_dim
        assert found.setdefault(rope, head_dim) == head_dim, f"one rotation of heads of {found[rope]} and {head_dim}"
    return found


def scaled_norm(spec: ModelSpec, name: str, weight_H: Tensor) -> Tensor:
    """A norm's weight. The last one is divided by the divisor of the logits, which are linear in it."""
    if name != FINAL_NORM or spec.logit_divisor == 1.0:
        return weight_H
    return weight_H.to(torch.promote_types(weight_H.dtype, torch.float32)) / spec.logit_divisor


def embedding_scale(spec: ModelSpec, dtype: torch.dtype) -> float:
    """The factor of the embedding, rounded to float32 and the dtype if the architecture rounds it."""
    return rounded(spec.embedding_scale, dtype) if spec.rounds_embedding_scale else spec.embedding_scale


def rounded(scale: float, dtype: torch.dtype) -> float:
    """A factor rounded to float32 and to the dtype."""
    return float(torch.tensor(scale, dtype=torch.float32).to(dtype))
