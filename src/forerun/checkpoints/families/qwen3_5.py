"""Qwen3.5, 3.6 and 3.8, dense: of four layers three are gated delta nets, and one has attention with an output gate."""

from dataclasses import replace
from typing import Final

from forerun.checkpoints.families.family import FULL, LINEAR, Family, layers_of_kind
from forerun.core.json_file import JsonFile
from forerun.core.mixers import GatedDeltaNet
from forerun.core.model_spec import ModelSpec

INTERVAL: Final = 4  # every fourth layer has attention
MOST_TAPS: Final = 16  # of a convolution; published models have 3 and 4
MOST_HEADS: Final = 1024  # whose parts are named one by one; published models have up to 64


def with_delta_nets(config: JsonFile, spec: ModelSpec) -> ModelSpec:
    """The spec with its gated delta nets, and the gate of its attention."""
    config.integer("num_attention_heads", most=MOST_HEADS)
    net = GatedDeltaNet(
        num_key_heads=config.integer("linear_num_key_heads", most=MOST_HEADS),
        num_value_heads=config.integer("linear_num_value_heads"),
        key_dim=config.integer("linear_key_head_dim"),
        value_dim=config.integer("linear_value_head_dim"),
        kernel_size=config.integer("linear_conv_kernel_dim", most=MOST_TAPS),
    )
    if net.num_value_heads % net.num_key_heads:
        raise config.wrong("linear_num_value_heads", f"a multiple of linear_num_key_heads ({net.num_key_heads})")
    interval = config.integer("full_attention_interval", INTERVAL)
    usual = tuple(layer for layer in range(spec.num_layers) if (layer + 1) % interval)
    layers = layers_of_kind(config, LINEAR, usual)
    return replace(spec, wide_norms=True, gates_attention=True, delta_net=net if layers else None, mixer_layers=layers)


def without_draft_head(keys: JsonFile) -> JsonFile:
    """The keys of a GGUF file, without the layers of the draft head behind those of the model."""
    num_layers = keys.integer("block_count") - keys.integer("nextn_predict_layers", 0, least=0)
    return replace(keys, values={**keys.values, "block_count": num_layers})


def with_gguf_delta_nets(keys: JsonFile, spec: ModelSpec) -> ModelSpec:
    """The spec with its gated delta nets, by the keys of a GGUF file."""
    keys.integer("attention.head_count", most=MOST_HEADS)
    num_value_heads = keys.integer("ssm.time_step_rank")
    net = GatedDeltaNet(
        num_key_heads=keys.integer("ssm.group_count"),
        num_value_heads=num_value_heads,
        key_dim=keys.integer("ssm.state_size"),
        value_dim=keys.integer("ssm.inner_size") // num_value_heads,
        kernel_size=keys.integer("ssm.conv_kernel", most=MOST_TAPS),
        has_tiled_keys=True,
    )
    if num_value_heads % net.num_key_heads or net.value_size != keys.integer("ssm.inner_size"):
        raise keys.wrong("ssm.time_step_rank", "a multiple of ssm.group_count, and a divisor of ssm.inner_size")
    interval = keys.integer("full_attention_interval", INTERVAL)
    usual = [(layer + 1) % interval != 0 for layer in range(spec.num_layers)]
    key = "attention.recurrent_layers"
    kinds = keys.typed(key, list[bool], "a list of true and false", usual)[: spec.num_layers]
    if len(kinds) < spec.num_layers or all(kinds):
        raise keys.wrong(key, f"a list of {spec.num_layers} entries, not all of which are true")
    layers = tuple(layer for layer, is_net in enumerate(kinds) if is_net)
    return replace(spec, wide_norms=True, gates_attention=True, delta_net=net if layers else None, mixer_layers=layers)


NET_KEYS: Final = (
    "nextn_predict_layers",
    "ssm.conv_kernel",
    "ssm.state_size",
    "ssm.group_count",
    "ssm.time_step_rank",
    "ssm.inner_size",
    "attention.recurrent_layers",
    "full_attention_interval",
    "rope.dimension_sections",  # of positions in pictures; those of a text are equal in all sections
)
DEFAULTS: Final = {
    "vocab_size": 248_320,
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
QWEN3_5: Final = Family(
    name="qwen3_5_text",
    architecture="qwen35",
    wrappers=("qwen3_5",),
    defaults=DEFAULTS,
    attention_bias=True,
    qk_norm=True,
    head_dim=256,
    layer_kinds=(FULL, LINEAR),
    partial_rotary=0.25,
    norm_offset=1.0,
    read=with_delta_nets,
    gguf_norms={"attention_norm": "attn_norm", "mlp_norm": "post_attention_norm"},
    gguf_usual=without_draft_head,
    read_gguf=with_gguf_delta_nets,
    gguf_keys=NET_KEYS,
)
