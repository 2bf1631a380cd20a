"""LFM2 and LFM2.5: most layers are short convolutions, the others have attention. In LFM2 with experts, all layers but
the first few have experts, chosen by sigmoids."""

from dataclasses import replace
from typing import Final

from forerun.checkpoints.families.family import (
    EXPERT_KEYS,
    FULL,
    KV_HEADS,
    Family,
    layers_of_kind,
    layers_with,
    with_experts,
    with_gguf_experts,
    without_layers_of_zeros,
)
from forerun.checkpoints.families.qwen3_5 import MOST_TAPS
from forerun.core.json_file import JsonFile
from forerun.core.mixers import ShortConvolution
from forerun.core.model_spec import ModelSpec, SigmoidRouting

CONVOLUTION: Final = "conv"
DENSE_KEY: Final = "leading_dense_block_count"
SHARES_EPS: Final = 1e-6  # added to the sum of the shares of a token's experts
SIGMOIDS: Final = 2  # `expert_gating_func` of a GGUF file
OTHER_KEYS: Final = {  # those of other families, by this family's
    "norm_eps": "rms_norm_eps",
    "block_norm_eps": "rms_norm_eps",
    "block_ff_dim": "intermediate_size",
    "tie_embedding": "tie_word_embeddings",
}


def usual(config: JsonFile) -> JsonFile:
    """The config with the keys of other families."""
    others = {other: config.values[own] for own, other in OTHER_KEYS.items() if config.has(own)}
    return replace(config, values={**config.values, **others})


def read(config: JsonFile, spec: ModelSpec) -> ModelSpec:
    """The spec with its convolutions.

    Without `layer_types`, the layers in `full_attn_idxs` have attention.
    """
    kinds = ["conv"] * spec.num_layers
    for layer in config.typed("full_attn_idxs", list[int], "a list of layers", list(range(spec.num_layers))):
        if not 0 <= layer < spec.num_layers:
            raise config.wrong("full_attn_idxs", f"a list of numbers below the {spec.num_layers} layers")
        kinds[layer] = FULL
    layers = layers_of_kind(config, CONVOLUTION, tuple(layer for layer, kind in enumerate(kinds) if kind != FULL))
    convolution = ShortConvolution(
        num_channels=spec.hidden_size,
        kernel_size=config.integer("conv_L_cache", most=MOST_TAPS),
        has_bias=config.flag("conv_bias"),
    )
    return replace(
        spec,
        intermediate_size=intermediate_size(config, spec.intermediate_size),
        convolution=convolution if layers else None,
        mixer_layers=layers,
    )


def read_moe(config: JsonFile, spec: ModelSpec) -> ModelSpec:
    """The spec with its convolutions and its experts."""
    spec = with_experts(config, read(config, spec), "num_experts", "num_experts_per_tok", "moe_intermediate_size")
    routing = SigmoidRouting(
        has_correction=config.flag("use_expert_bias"),
        is_normalised=config.flag("norm_topk_prob"),
        eps=SHARES_EPS,
        scale=config.number("routed_scaling_factor"),
    )
    num_dense = config.integer("num_dense_layers", least=0, most=spec.num_layers - 1)
    return with_dense_layers(spec, routing, num_dense, config.integer("intermediate_size"))


def with_dense_layers(spec: ModelSpec, routing: SigmoidRouting, num_dense: int, dense_size: int) -> ModelSpec:
    return replace(spec, routing=routing, dense_layers=tuple(range(num_dense)), dense_size=dense_size * (num_dense > 0))


def intermediate_size(config: JsonFile, stated: int) -> int:
    """Two thirds of the stated size, times a factor, rounded up to a multiple; or the stated size."""
    if not config.flag("block_auto_adjust_ff_dim"):
        return stated
    size = int(config.number("block_ffn_dim_multiplier", 1.0) * int(2 * stated / 3))
    unit = config.integer("block_multiple_of")
    return -(-size // unit) * unit


def usual_gguf(keys: JsonFile) -> JsonFile:
    """The keys of a GGUF file with the heads of layers that have attention; it has 0 for the others."""
    return without_layers_of_zeros(keys, KV_HEADS)


def read_gguf(keys: JsonFile, spec: ModelSpec) -> ModelSpec:
    attentions = layers_with(keys, KV_HEADS)
    layers = tuple(layer for layer in range(spec.num_layers) if layer not in attentions)
    kernel_size = keys.integer("shortconv.l_cache", most=MOST_TAPS)
    convolution = ShortConvolution(num_channels=spec.hidden_size, kernel_size=kernel_size)
    return replace(spec, convolution=convolution if layers else None, mixer_layers=layers)


def read_moe_gguf(keys: JsonFile, spec: ModelSpec) -> ModelSpec:
    if keys.integer("expert_gating_func", SIGMOIDS) != SIGMOIDS:
        raise keys.wrong("expert_gating_func", f"{SIGMOIDS}, sigmoids: choose another file of the model")
    num_dense = keys.integer(DENSE_KEY, least=0, most=spec.num_layers - 1)
    routing = SigmoidRouting(eps=SHARES_EPS)
    return with_dense_layers(
        with_gguf_experts(keys, read_gguf(keys, spec)), routing, num_dense, keys.integer("feed_forward_length")
    )


LFM2: Final = Family(
    name="lfm2",
    architecture="lfm2",
    defaults={
        "vocab_size": 65_536,
        "hidden_size": 2560,
        "intermediate_size": 12_288,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 128_000,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_auto_adjust_ff_dim": True,
        "block_multiple_of": 256,
    },
    usual=usual,
    qk_norm=True,
    layer_kinds=(FULL, CONVOLUTION),
    norms={"attention_norm": "operator_norm", "mlp_norm": "ffn_norm"},
    renamed={
        "embedding_norm": "norm",
        "self_attn.out_proj": "self_attn.o_proj",
        "self_attn.q_layernorm": "self_attn.q_norm",
        "self_attn.k_layernorm": "self_attn.k_norm",
        "feed_forward.w1": "mlp.gate_proj",
        "feed_forward.w3": "mlp.up_proj",
        "feed_forward.w2": "mlp.down_proj",
    },
    read=read,
    gguf_usual=usual_gguf,
    read_gguf=read_gguf,
    gguf_keys=("shortconv.l_cache",),
    gguf_final_norm="token_embd_norm",
)
LFM2_MOE: Final = replace(
    LFM2,
    name="lfm2_moe",
    architecture="lfm2moe",
    defaults={
        **LFM2.defaults,
        "hidden_size": 2048,
        "intermediate_size": 7168,
        "block_auto_adjust_ff_dim": False,
        "moe_intermediate_size": 1792,
        "num_dense_layers": 2,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "use_expert_bias": True,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
    },
    renamed={
        **LFM2.renamed,
        "feed_forward.gate": "mlp.router",
        "feed_forward.expert_bias": "mlp.router_correction",
        "feed_forward.experts.*.w1": "mlp.experts.*.gate_proj",
        "feed_forward.experts.*.w3": "mlp.experts.*.up_proj",
        "feed_forward.experts.*.w2": "mlp.experts.*.down_proj",
    },
    read=read_moe,
    read_gguf=read_moe_gguf,
    gguf_keys=(*LFM2.gguf_keys, *EXPERT_KEYS, DENSE_KEY, "expert_gating_func"),
)
