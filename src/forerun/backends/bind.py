"""Binds a model's weights to its program: each weight is read once and packed for the backend.

Legend: P positions, D head size.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from forerun.core.model_spec import ModelSpec
from forerun.model.program import Op
from forerun.model.rope import rope_table
from forerun.model.tree_cache import TreeCache
from forerun.model.weights import Table, Weight, WeightSource

LinearT = TypeVar("LinearT")
NormT = TypeVar("NormT")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoundWeights(Generic[LinearT, NormT]):
    """The constant inputs of a program, by the names in `Op.weights`.

    Args:
        linears: weights of linear and linear_add.
        norms: weights of norm.
        head_norms: norms of query heads and of key heads, for rope_append; empty if the model family has none.
        table: the embedding.
        cos_sin_P2D: see `model.rope.rope_table`.
    """

    linears: Mapping[str, LinearT]
    norms: Mapping[str, NormT]
    head_norms: Mapping[str, tuple[NormT, NormT]]
    table: Table
    cos_sin_P2D: Tensor


def bind_weights(
    spec: ModelSpec,
    program: Sequence[Op],
    weights: WeightSource,
    *,
    cache: TreeCache,
    pack_linear: Callable[[Op, Weight, Tensor | None], LinearT],
    pack_norm: Callable[[Tensor], NormT],
    rope_dtype: torch.dtype = torch.float32,
) -> BoundWeights[LinearT, NormT]:
    """Pack what the ops of `program` need; other weights are left in their source."""
    device = str(cache.keys_LSKD.device)
    return BoundWeights(
        linears={op.weights: pack_linear(op, *weights.linear(op.weights)) for op in program if "linear" in op.kind},
        norms={op.weights: pack_norm(weights.vector(op.weights)) for op in program if op.kind == "norm"},
        head_norms={
            op.weights: (
                pack_norm(weights.vector(op.weights + "q_norm")), pack_norm(weights.vector(op.weights + "k_norm"))
            )
            for op in program
            if op.kind == "rope_append" and spec.qk_norm
        },
        table=weights.table(),
        cos_sin_P2D=rope_table(spec.rope, spec.head_dim, cache.capacity, dtype=rope_dtype, device=device),
    )  # fmt: skip
