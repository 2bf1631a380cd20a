"""A draft's weights before training: its target's first layers if they have the draft's width, else random ones.

The first layers are the best choice: after 100,000 tokens of training, a draft from SmolLM2's first two layers guesses
24 % of its next tokens right, a draft from the first and a late layer 12 % (docs/log.md).

Legend: H the target's hidden size, h the draft's, W the draft's vocabulary.
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
    target: ModelSpec, weights: Mapping[str, Tensor], draft: ModelSpec, vocabulary: VocabularyMap, seed: int
) -> dict[str, Tensor]:
    """float32 weights of `draft`, keyed by the names of `tensor_plan`.

    Args:
        weights: the target's weights.
    """
    ids_W = vocabulary.target_ids.long()
    directions_Hh = main_directions(weights["embedding.weight"].float()[ids_W], draft.hidden_size)
    is_alike = not target.qk_norm and shape_of_layer(draft) == shape_of_layer(target)
    shapes, random = fused_shapes(tensor_plan(draft)), torch.Generator().manual_seed(seed)
    given = {name: weights[name].float()[ids_W] @ directions_Hh for name in VOCABULARY if name in weights}
    if is_alike:
        given |= {name: weights[name].float() for name in shapes if name in weights and name not in VOCABULARY}
    return {
        name: given[name].cpu() if name in given else fresh_weight(name, shape, random)
        for name, shape in shapes.items()
    }


def shape_of_layer(spec: ModelSpec) -> tuple[int, ...]:
    """The sizes that two models must share for one to copy a layer of the other."""
    return spec.hidden_size, spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.intermediate_size


def main_directions(embedding_WH: Tensor, num_directions: int) -> Tensor:
    """Orthonormal [H, h]: the directions in which tokens differ most; the identity if h equals H."""
    num_all = embedding_WH.shape[1]
    if num_directions == num_all:
        return torch.eye(num_all, device=embedding_WH.device)
    vectors: Tensor = torch.linalg.eigh(embedding_WH.T @ embedding_WH).eigenvectors
    return vectors[:, num_all - num_directions :]


def fresh_weight(name: str, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    """Random for a matrix, ones for a norm, zeros for a bias."""
    if len(shape) == 2:
        weight: Tensor = torch.randn(shape, generator=random) * (0.5 * shape[1] ** -0.5)
        return weight
    return torch.zeros(shape) if name.endswith(".bias") else torch.ones(shape)
