"""Granite 4: factors of embedding, attention, residual stream and logits. In the hybrid class most layers have Mamba 2
in place of attention, and large models have experts."""

from dataclasses import replace
from typing import Final

from forerun.checkpoints.families.family import (
    FULL,
    FUSED_GATE_UP,
    KV_HEADS,
    LINEAR,
    SHARED_KEY,
    Family,
    layers_of_kind,
    layers_with,
    with_experts,
    without_layers_of_zeros,
)
from forerun.checkpoints.families.mamba2 import GGUF_KEYS, read_gguf_mamba2, read_mamba2
from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec

KINDS: Final = {"mamba": LINEAR, "attention": FULL}  # as transformers before 5 and the published configs have them


def scaled(spec: ModelSpec, *, embedding: float, attention: float, residual: float, logits: float) -> ModelSpec:
    """The spec with these factors.

    A branch times `residual` is added to the residual stream. We keep the stream divided by `residual` instead: the
    embedding enters divided by it, branches are added as they are, and every norm gives the same result with its eps
    divided by residual^2.
    """
    return replace(
        spec,
        embedding_scale=embedding / residual,
        norm_eps=spec.norm_eps / residual**2,
        attention_scale=attention,
        logit_divisor=logits,
    )


def read(config: JsonFile, spec: ModelSpec) -> ModelSpec:
    return scaled(
        spec,
        embedding=config.number("embedding_multiplier", 1.0),
        attention=config.number("attention_multiplier", 1.0),
        residual=config.number("residual_multiplier", 1.0),
        logits=config.number("logits_scaling", 1.0),
    )


def read_gguf(keys: JsonFile, spec: ModelSpec) -> ModelSpec:
    return scaled(
        spec,
        embedding=keys.number("embedding_scale", 1.0),
        attention=keys.number("attention.scale", spec.head_dim**-0.5),
        residual=keys.number("residual_scale", 1.0),
        logits=keys.number("logit_scale", 1.0),
    )


def usual_hybrid(config: JsonFile) -> JsonFile:
    """The config with the kinds of layers that transformers 5 writes, and the size of a Mamba head as a number."""
    kinds = config.values.get("layer_types", config.values.get("layers_block_type"))
    if isinstance(kinds, list):
        kinds = [KINDS.get(kind, kind) if isinstance(kind, str) else kind for kind in kinds]
    values = {**config.values, "layer_types": kinds}
    if config.values.get("mamba_d_head", "auto") == "auto":
        size = config.integer("mamba_expand", 2) * config.integer("hidden_size")
        values["mamba_d_head"] = size // config.integer("mamba_n_heads", 128)
    return replace(config, values=values)


def read_hybrid(config: JsonFile, spec: ModelSpec) -> ModelSpec:
    """A model of the hybrid class: Mamba 2 in place of attention in most layers, perhaps experts.

    Every layer has the shared MLP; in a model with experts its tokens go through it besides their experts.
    """
    layers = layers_of_kind(config, LINEAR, tuple(range(spec.num_layers)))
    mamba = read_mamba2(
        config, heads="mamba_n_heads", head_dim="mamba_d_head", state="mamba_d_state", groups="mamba_n_groups",
        taps="mamba_d_conv", eps="rms_norm_eps", product_bias="mamba_proj_bias", taps_bias="mamba_conv_bias",
    )  # fmt: skip
    size = config.integer("mamba_expand") * spec.hidden_size
    if layers and mamba.value_size != size:
        raise config.wrong("mamba_n_heads", f"{size} (mamba_expand times hidden_size) divided by mamba_d_head")
    shared_size = config.integer("shared_intermediate_size")
    if config.integer("num_local_experts", least=0):
        spec = with_experts(config, spec, "num_local_experts", "num_experts_per_tok", "intermediate_size")
        spec = replace(spec, shared_size=shared_size, gates_shared=False)
    else:
        spec = replace(spec, intermediate_size=shared_size)
    if config.values.get("position_embedding_type") != "rope":
        spec = replace(spec, unrotated_layers=tuple(range(spec.num_layers)))
    return read(config, replace(spec, mamba=mamba if layers else None, mixer_layers=layers))


def usual_gguf_hybrid(keys: JsonFile) -> JsonFile:
    return without_layers_of_zeros(keys, KV_HEADS)


def read_gguf_hybrid(keys: JsonFile, spec: ModelSpec) -> ModelSpec:
    attentions = layers_with(keys, KV_HEADS)
    layers = tuple(layer for layer in range(spec.num_layers) if layer not in attentions)
    if not layers:
        raise keys.wrong(KV_HEADS, "0 for the layers with Mamba 2")
    if keys.integer("expert_count", 0, least=0):
        spec = with_experts(keys, spec, "expert_count", "expert_used_count", "feed_forward_length")
        shared_size = keys.integer(SHARED_KEY, 0, least=0)
        spec = replace(spec, shared_size=shared_size, gates_shared=False)
    if not keys.flag("rope.scaling.finetuned", True):  # by which llama.cpp decides
        spec = replace(spec, unrotated_layers=tuple(range(spec.num_layers)))
    return read_gguf(keys, replace(spec, mamba=read_gguf_mamba2(keys), mixer_layers=layers))


GRANITE: Final = Family(
    name="granite",
    architecture="granite",
    attention_bias=True,
    mlp_bias=True,
    kv_heads_required=False,
    gguf_rotates_pairs=True,
    read=read,
    scales_attention=True,
    read_gguf=read_gguf,
    gguf_keys=("embedding_scale", "residual_scale", "logit_scale"),
)
GRANITE_HYBRID: Final = Family(
    name="granitemoehybrid",
    architecture="granitehybrid",  # the converter writes granite for a model without Mamba layers
    defaults={
        "hidden_size": 4096,
        "intermediate_size": 11_008,
        "mamba_n_heads": 128,
        "mamba_n_groups": 1,
        "mamba_d_state": 256,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "rms_norm_eps": 1e-6,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 1024,
    },
    usual=usual_hybrid,
    attention_bias=True,
    kv_heads_required=False,
    layer_kinds=(FULL, LINEAR),
    gguf_rotates_pairs=True,
    scales_attention=True,
    fused={"shared_mlp.input_linear": FUSED_GATE_UP},
    renamed={
        "shared_mlp.output_linear": "mlp.down_proj",
        "block_sparse_moe.router.layer": "mlp.router",
        "block_sparse_moe.input_linear": "mlp.experts.gate_up_proj",
        "block_sparse_moe.output_linear": "mlp.experts.down_proj",
    },
    shared_expert="mlp",
    read=read_hybrid,
    gguf_usual=usual_gguf_hybrid,
    read_gguf=read_gguf_hybrid,
    gguf_keys=(*GRANITE.gguf_keys, *GGUF_KEYS, "expert_count", "expert_used_count", SHARED_KEY),
)
