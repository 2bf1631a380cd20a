"""LFM2 and LFM2.5: most layers are short convolutions, the others have attention."""

from dataclasses import replace
from typing import Final

from forerun.checkpoints.families.family import FULL, Family, layers_of_kind
from forerun.checkpoints.families.qwen3_5 import MOST_TAPS
from forerun.core.json_file import JsonFile
from forerun.core.mixers import ShortConvolution
from forerun.core.model_spec import ModelSpec

CONVOLUTION: Final = "conv"
KV_HEADS: Final = "attention.head_count_kv"
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


def intermediate_size(config: JsonFile, stated: int) -> int:
    """Two thirds of the stated size, times a factor, rounded up to a multiple; or the stated size."""
    if not config.flag("block_auto_adjust_ff_dim"):
        return stated
    size = int(config.number("block_ffn_dim_multiplier", 1.0) * int(2 * stated / 3))
    unit = config.integer("block_multiple_of")
    return -(-size // unit) * unit


def usual_gguf(keys: JsonFile) -> JsonFile:
    """The keys of a GGUF file with the heads of layers that have attention; it has 0 for the others."""
    counts = keys.values.get(KV_HEADS)
    if not isinstance(counts, list | tuple):
        return keys
    some = {count for count in counts if count}
    if len(some) != 1 or len(counts) != keys.integer("block_count"):
        raise keys.wrong(KV_HEADS, "a number for each layer: 0, or one and the same number")
    return replace(keys, values={**keys.values, KV_HEADS: some.pop()})


def read_gguf(keys: JsonFile, spec: ModelSpec) -> ModelSpec:
    counts = keys.values.get(KV_HEADS)
    counts = counts if isinstance(counts, list | tuple) else ()  # one number: all layers have attention
    layers = tuple(layer for layer, count in enumerate(counts) if not count)
    kernel_size = keys.integer("shortconv.l_cache", most=MOST_TAPS)
    convolution = ShortConvolution(num_channels=spec.hidden_size, kernel_size=kernel_size)
    return replace(spec, convolution=convolution if layers else None, mixer_layers=layers)


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
