"""A draft's weights before training: its target's first layers where they have the draft's width, else random ones.

The first layers are the best to take: two of them guess 24 % of SmolLM2's next tokens right after 100,000 tokens of
training, the first and a late one 12 % (docs/log.md).

Legend: H the target's hidden size, h the draft's, I and i the sizes of their MLPs, W the draft's vocabulary.
"""

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from forerun.checkpoints.huggingface.names import fused_shapes, tensor_plan
from forerun.core.model_spec import ModelSpec
from forerun.model.vocabulary_map import VocabularyMap

VOCABULARY: Final = ("embedding.weight", "head.weight")


def initial_weights(
    target: ModelSpec, weights: Mapping[str, Tensor], draft: ModelSpec, vocabulary: VocabularyMap
) -> dict[str, Tensor]:
    """float32 weights of `draft` by the names of `tensor_plan`.

    Args:
        weights: the target's.
    """
    ids_W = vocabulary.target_ids.long()
    directions_Hh = main_directions(weights["embedding.weight"].float()[ids_W], draft.hidden_size)
    is_alike = draft.hidden_size == target.hidden_size and draft.q_size == target.q_size and not target.qk_norm
    given = {name: weights[name].float()[ids_W] @ directions_Hh for name in VOCABULARY if name in weights}
    if is_alike:
        given |= {name: value for name, value in cut_mlps(weights, draft).items() if name not in VOCABULARY}
    shapes = fused_shapes(tensor_plan(draft))
    return {name: given[name] if name in given else fresh_weight(name, shape) for name, shape in shapes.items()}


def cut_mlps(weights: Mapping[str, Tensor], draft: ModelSpec) -> dict[str, Tensor]:
    """The target's weights, of each MLP the units with the largest outputs."""
    cut = {name: value.float() for name, value in weights.items()}
    for layer in range(draft.num_layers):
        gate_up, out = f"layers.{layer}.gate_up", f"layers.{layer}.mlp_out.weight"
        kept_i = cut[out].norm(dim=0).topk(draft.intermediate_size).indices.sort().values
        cut[out] = cut[out][:, kept_i]
        for name in (f"{gate_up}.weight", f"{gate_up}.bias"):
            if name in cut:
                cut[name] = torch.cat([half[kept_i] for half in cut[name].chunk(2)])
    return cut


def main_directions(embedding_WH: Tensor, num_directions: int) -> Tensor:
    """[H, h] orthonormal: the directions in which tokens differ most; of all, the identity."""
    num_all = embedding_WH.shape[1]
    if num_directions == num_all:
        return torch.eye(num_all)
    vectors: Tensor = torch.linalg.eigh(embedding_WH.T @ embedding_WH).eigenvectors
    return vectors[:, num_all - num_directions :]


def fresh_weight(name: str, shape: tuple[int, ...]) -> Tensor:
    """Random for a matrix, ones for a norm, zeros for a bias."""
    if len(shape) == 2:
        return torch.randn(shape) * (0.5 * shape[1] ** -0.5)
    return torch.zeros(shape) if name.endswith(".bias") else torch.ones(shape)
