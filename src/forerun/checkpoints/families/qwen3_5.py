"""Qwen3.5, 3.6 and 3.8, dense: of four layers three are gated delta nets, and one has attention with an output gate."""

from dataclasses import replace
from typing import Final

from forerun.checkpoints.families.family import FULL, LINEAR, Family, layers_of_kind
from forerun.core.json_file import JsonFile
from forerun.core.mixers import GatedDeltaNet
from forerun.core.model_spec import ModelSpec

INTERVAL: Final = 4  # every fourth layer has attention
MOST_TAPS: Final = 16  # of a convolution; published models have 3 and 4


def with_delta_nets(config: JsonFile, spec: ModelSpec) -> ModelSpec:
    """The spec with its gated delta nets, and the gate of its attention."""
    net = GatedDeltaNet(
        num_key_heads=config.integer("linear_num_key_heads"),
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
    return replace(spec, wide_norms=True, gates_attention=True, mixer=net if layers else None, mixer_layers=layers)


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
    architecture=None,
    wrappers=("qwen3_5",),
    defaults=DEFAULTS,
    attention_bias=True,
    qk_norm=True,
    head_dim=256,
    layer_kinds=(FULL, LINEAR),
    partial_rotary=0.25,
    norm_offset=1.0,
    read=with_delta_nets,
)
