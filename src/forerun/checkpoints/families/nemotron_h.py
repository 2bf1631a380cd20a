"""Nemotron-H and Nemotron 3 Nano: every layer has one sublayer, Mamba 2, attention without positions, or an MLP.

The MLPs have a squared ReLU and no gate. In Nemotron 3 Nano they are experts, chosen by sigmoids, beside a shared one.

The published configs limit steps of Mamba 2 by `time_step_limit`, from 0 to infinity, and so do we, as the models were
trained. transformers takes `time_step_min` as the lower limit in prompts, but none for a single token.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from forerun.checkpoints.families.family import (
    EXPERT_KEYS,
    FULL,
    KV_HEADS,
    LINEAR,
    SHARED_KEY,
    Family,
    layers_with,
    with_experts,
    with_gguf_experts,
    without_layers_of_zeros,
)
from forerun.checkpoints.families.mamba2 import GGUF_EPS, GGUF_KEYS, read_gguf_mamba2, read_mamba2
from forerun.checkpoints.families.qwen3_5 import without_draft_head
from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec, SigmoidRouting

DENSE: Final = "mlp"
EXPERTS: Final = "moe"
PATTERN: Final = {"M": LINEAR, "*": FULL, "-": DENSE, "E": EXPERTS}
KINDS: Final = {"mamba": LINEAR, "attention": FULL}  # as configs of other versions have them
SHARES_EPS: Final = 1e-20  # added to the sum of the shares of a token's experts
FEED_FORWARD: Final = "feed_forward_length"
OTHER_KEYS: Final = {  # those of other families, by this family's
    "layer_norm_epsilon": "rms_norm_eps",
    "norm_eps": "rms_norm_eps",
    "attention_head_dim": "head_dim",
    "mlp_hidden_act": "hidden_act",
}
OTHER_MAMBA_KEYS: Final = {  # this family's, by those of other versions
    "mamba_n_groups": "n_groups",
    "mamba_d_conv": "conv_kernel",
    "mamba_conv_bias": "use_conv_bias",
    "mamba_dt_limit": "time_step_limit",
}
ONE_VALUE: Final = {  # the only supported values
    "mamba_hidden_act": "silu",
    "moe_latent_size": None,
    "n_group": 1,
    "topk_group": 1,
}


def usual(config: JsonFile) -> JsonFile:
    """The config with the keys of other families, and a list of the kinds of layers."""
    values = dict(config.values)
    for own, other in (OTHER_KEYS | OTHER_MAMBA_KEYS).items():
        if config.has(own) and not config.has(other):
            values[other] = values[own]
    kinds = values.get("layers_block_type", values.get("layer_types"))
    pattern = values.get("hybrid_override_pattern")
    if isinstance(pattern, str) and not kinds:
        if set(pattern) - set(PATTERN):
            raise config.wrong("hybrid_override_pattern", f"made of {' '.join(PATTERN)}, the only kinds of layers")
        kinds = [PATTERN[letter] for letter in pattern]
    if not isinstance(kinds, list) or not kinds:
        raise config.wrong("layers_block_type", f"a list of {', '.join(PATTERN.values())}")
    kinds = [KINDS.get(kind, kind) if isinstance(kind, str) else kind for kind in kinds]
    return replace(config, values={**values, "layer_types": kinds, "num_hidden_layers": len(kinds)})


def read(config: JsonFile, spec: ModelSpec) -> ModelSpec:
    for key, value in ONE_VALUE.items():
        if config.values.get(key, value) != value:
            raise config.wrong(key, f"{value!r}, the only supported value of this family")
    kinds = config.typed("layer_types", list[str], "a list")
    if FULL not in kinds:
        raise config.wrong("layer_types", f"a list with at least one {FULL!r}")
    mamba = read_mamba2(
        config, heads="mamba_num_heads", head_dim="mamba_head_dim", state="ssm_state_size", groups="n_groups",
        taps="conv_kernel", eps="rms_norm_eps", product_bias="use_bias", taps_bias="use_conv_bias",
    )  # fmt: skip
    mlp_bias = config.flag("mlp_bias")
    if EXPERTS in kinds:
        dense_size = spec.intermediate_size if DENSE in kinds else 0
        spec = with_experts(config, spec, "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size")
        routing = SigmoidRouting(
            is_normalised=config.flag("norm_topk_prob"), eps=SHARES_EPS, scale=config.number("routed_scaling_factor")
        )
        spec = replace(
            spec,
            routing=routing,
            shared_size=config.integer("moe_shared_expert_intermediate_size"),
            gates_shared=False,
            dense_layers=tuple(layer for layer, kind in enumerate(kinds) if kind == DENSE),
            dense_size=dense_size,
        )
        if mlp_bias:
            raise config.wrong("mlp_bias", "false: biases of experts are not supported in this family")
    return of_kinds(replace(spec, mamba=mamba, mlp_bias=mlp_bias), kinds)


def of_kinds(spec: ModelSpec, kinds: Sequence[str]) -> ModelSpec:
    """The spec with these kinds of layers, and the values that all models of the family have."""
    mixers = tuple(layer for layer, kind in enumerate(kinds) if kind == LINEAR)
    mlps = tuple(layer for layer, kind in enumerate(kinds) if kind in (DENSE, EXPERTS))
    layers = range(spec.num_layers)
    return replace(
        spec,
        mamba=spec.mamba if mixers else None,
        mixer_layers=mixers,
        mlp_only=mlps,
        mixer_only=tuple(layer for layer in layers if layer not in mlps),
        unrotated_layers=tuple(layers),
        gate="relu2",
        wide_norms=True,
    )


def usual_gguf(keys: JsonFile) -> JsonFile:
    """The keys of a GGUF file without its draft head, with one number of heads and one size of the MLPs."""
    values = dict(keys.values)
    num_layers = keys.integer("block_count") - keys.integer("nextn_predict_layers", 0, least=0)
    for key in (KV_HEADS, FEED_FORWARD):
        counts = values.get(key)
        values[key] = counts[:num_layers] if isinstance(counts, list | tuple) else counts
    values.setdefault(GGUF_EPS, values.get("attention.layer_norm_epsilon"))
    keys = without_draft_head(replace(keys, values=values))
    return without_layers_of_zeros(without_layers_of_zeros(keys, KV_HEADS), FEED_FORWARD)


def read_gguf(keys: JsonFile, spec: ModelSpec) -> ModelSpec:
    num_groups = keys.integer("expert_group_count", 1)
    if num_groups != 1:
        raise keys.wrong("expert_group_count", "1: experts in groups are not supported")
    mlps = layers_with(keys, FEED_FORWARD)
    attentions = layers_with(keys, KV_HEADS)
    other = dict.fromkeys(mlps, DENSE) | dict.fromkeys(attentions, FULL)
    kinds = [other.get(layer, LINEAR) for layer in range(spec.num_layers)]
    if keys.integer("expert_count", 0, least=0):
        routing = SigmoidRouting(
            is_normalised=keys.flag("expert_weights_norm", False),
            eps=SHARES_EPS,
            scale=keys.number("expert_weights_scale", 1.0),
        )
        spec = replace(with_gguf_experts(keys, spec), routing=routing, gates_shared=False, mlp_bias=False)
        spec = replace(spec, shared_size=keys.integer(SHARED_KEY))
    usual_keys = replace(keys, values={GGUF_EPS: keys.values.get("attention.layer_norm_epsilon"), **keys.values})
    return of_kinds(replace(spec, mamba=read_gguf_mamba2(usual_keys)), kinds)


NEMOTRON_H: Final = Family(
    name="nemotron_h",
    architecture="nemotron_h",
    other_architecture="nemotron_h_moe",
    prefix="backbone.",
    defaults={
        "vocab_size": 131_072,
        "hidden_size": 4096,
        "intermediate_size": 21_504,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "mlp_bias": False,
        "use_bias": False,
        "use_conv_bias": True,
        "ssm_state_size": 128,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "conv_kernel": 4,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 7688,
        "moe_shared_expert_intermediate_size": 7688,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
    },
    usual=usual,
    head_dim=128,
    activation="relu2",
    layer_kinds=tuple(PATTERN.values()),
    norms={"attention_norm": "norm", "mlp_norm": "norm"},
    renamed={
        "embeddings": "embed_tokens",
        "norm_f": "norm",
        **{f"mixer.{part}_proj": f"self_attn.{part}_proj" for part in "qkvo"},
        **{f"mixer.{name}": f"mamba.{name}" for name in ("in_proj", "out_proj", "conv1d", "norm")},
        **{f"mixer.{name}": f"mamba.{name}" for name in ("A_log", "D", "dt_bias")},
        "mixer.gate": "mlp.router",
        "mixer.gate.e_score_correction_bias": "mlp.router_correction",
        **{
            f"mixer.{stored}{part}_proj": f"mlp.{own}{part}_proj"
            for part in ("up", "down")
            for stored, own in (("", ""), ("experts.*.", "experts.*."), ("shared_experts.", "shared_expert."))
        },
    },
    gguf_norms={"attention_norm": "attn_norm", "mlp_norm": "attn_norm"},
    gguf_rotates_pairs=True,
    read=read,
    gguf_usual=usual_gguf,
    read_gguf=read_gguf,
    gguf_keys=(
        *GGUF_KEYS,
        *EXPERT_KEYS,
        SHARED_KEY,
        "nextn_predict_layers",
        "attention.layer_norm_epsilon",
        "expert_shared_count",
        "expert_weights_norm",
        "expert_weights_scale",
        "expert_group_count",
        "expert_group_used_count",
        "expert_gating_func",
    ),
)
