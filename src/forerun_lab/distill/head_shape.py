"""Chooses a target's head: its sizes, the layers whose features it reads, and its weights before training."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from forerun.core.errors import ConfigError
from forerun.core.mechanisms import WINDOW, mechanisms_of
from forerun.core.model_spec import ModelSpec, RopeSpec
from forerun.drafting.heads.kind import HeadSpec
from forerun.model.vocabulary_map import VocabularyMap
from forerun_lab.distill.dflash_head import DFLASH
from forerun_lab.distill.eagle_head import EAGLE3
from forerun_lab.distill.head_kind import NewHead, TrainableHead

TRAINABLE: Final[Mapping[str, TrainableHead[Any]]] = {"eagle3": EAGLE3, "dflash": DFLASH}  # by `--kind`
LEAST_LAYERS: Final = 4  # of a target: three features from different layers, before the last


def choose_head(
    target: ModelSpec, kind: TrainableHead[Any], vocabulary: VocabularyMap, counts_V: Tensor, num_layers: int | None
) -> HeadSpec:
    """A head with layers of the target's shape.

    Args:
        counts_V: how often the target writes each token.

    Raises:
        ConfigError: the target has too few layers, or layers that a head cannot copy.
    """
    if target.num_layers < LEAST_LAYERS:
        raise ConfigError(
            f"a head reads three of its target's layers, and this target has {target.num_layers}: choose a target with "
            f"{LEAST_LAYERS} or more, or --kind model"
        )
    others = mechanisms_of(target, target.max_positions) - {WINDOW}
    if others:
        raise ConfigError(
            f"heads begin as a copy of plain layers, and this target has {', '.join(sorted(others))}: choose another "
            "target, or --kind model"
        )
    body = replace(
        target,
        family="llama",
        num_layers=1,
        vocab_size=len(vocabulary.target_ids),
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        qk_norm=False,
        tied_embeddings=False,
        rope=RopeSpec(theta=target.rope.theta),
        window=None,
        sliding_layers=(),
    )
    entered = spread(target.num_layers)
    head: HeadSpec = kind.choose(NewHead(body=body, entered=entered, counts_V=counts_V, num_layers=num_layers))
    return head


def spread(num_layers: int) -> tuple[int, ...]:
    """The layers whose inputs are features: EAGLE's 2, L // 2 and L - 3, or the last three of a target with few."""
    usual = (2, num_layers // 2, num_layers - 3)
    return usual if usual == tuple(sorted(set(usual))) else tuple(range(num_layers - 3, num_layers))


def initial_head(
    kind: TrainableHead[Any],
    spec: HeadSpec,
    target: Mapping[str, Tensor],
    num_layers: int,
    vocabulary: VocabularyMap,
    seed: int,
) -> dict[str, Tensor]:
    """float32 weights: the target's last layers, applied to its last feature, so that the head first continues them.

    Args:
        target: the target's weights by our names, of `num_layers` layers.
    """
    random = torch.Generator().manual_seed(seed)
    body = spec.body
    hidden = body.hidden_size
    weights = dict[str, Tensor]()
    for name, shape in spec.needed_shapes():
        is_norm = len(shape) == 1
        weights[name] = torch.ones(shape) if is_norm else torch.randn(shape, generator=random) * 0.02
    weights["fc.weight"][:, -hidden:] += torch.eye(hidden)
    weights["norm.weight"] = target["final_norm.weight"].float().cpu()
    for idx in range(body.num_layers):
        copy_layer(weights, f"layers.{idx}.", target, f"layers.{num_layers - body.num_layers + idx}.", body)
    rows = target.get("head.weight", target["embedding.weight"])
    kind.start(weights, rows.float().cpu()[vocabulary.target_ids.long().cpu()])
    return weights


def copy_layer(
    weights: dict[str, Tensor], part: str, target: Mapping[str, Tensor], source: str, body: ModelSpec
) -> None:
    """Copy a layer of the target; for an attention with two inputs, into the columns of the second, the feature."""
    stacked = target[f"{source}qkv.weight"].float().cpu()
    q, k, v = torch.split(stacked, [body.q_size, body.kv_size, body.kv_size])
    gate, up = target[f"{source}gate_up.weight"].float().cpu().chunk(2)
    given = {"self_attn.q_proj": q, "self_attn.k_proj": k, "self_attn.v_proj": v, "mlp.gate_proj": gate}
    given |= {"mlp.up_proj": up, "mlp.down_proj": target[f"{source}mlp_out.weight"].float().cpu()}
    given["self_attn.o_proj"] = target[f"{source}attention_out.weight"].float().cpu()
    for name, value in given.items():
        weights[f"{part}{name}.weight"][:, -value.shape[1] :] = value
    for name, ours in (("input_layernorm", "attention_norm"), ("post_attention_layernorm", "mlp_norm")):
        weights[f"{part}{name}.weight"] = target[f"{source}{ours}.weight"].float().cpu()
