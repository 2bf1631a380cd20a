"""Gemma 4, dense (E2B, E4B, 12B, 31B): larger heads in full layers, embeddings for each layer, borrowed keys."""

from dataclasses import replace
from typing import Final

from forerun.checkpoints.families.family import Family, typed_or_all_but_every
from forerun.checkpoints.families.gemma3 import GEMMA3, PERIOD, common
from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec

ROPES: Final = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}


def sliding(config: JsonFile) -> tuple[int, ...]:
    """As in Gemma 3; the last layer never slides."""
    last = config.integer("num_hidden_layers") - 1
    return tuple(layer for layer in typed_or_all_but_every(config, PERIOD) if layer != last)


def read(config: JsonFile, spec: ModelSpec) -> ModelSpec:
    """The values of a folder.

    Raises:
        CheckpointError: it needs experts, or attention in both directions.
    """
    if config.flag("enable_moe_block", False):
        raise config.wrong("enable_moe_block", "false: Gemma 4 with experts (26B-A4B) is not supported")
    num_borrowing = config.integer("num_kv_shared_layers", 0, least=0, most=spec.num_layers - 1)
    first = spec.num_layers - num_borrowing
    if num_borrowing and len({layer in spec.sliding_layers for layer in range(first)}) < 2:
        raise config.wrong("num_kv_shared_layers", "such that a layer of each kind comes before the sharing ones")
    if config.values.get("use_bidirectional_attention") == "all":
        raise config.wrong("use_bidirectional_attention", "absent or 'vision': a text model's attention is causal")
    return replace(
        common(spec),
        attention_scale=1.0,
        value_norm=True,
        layer_scale=True,
        logit_cap=config.number("final_logit_softcapping") if config.has("final_logit_softcapping") else None,
        layer_input_size=config.integer("hidden_size_per_layer_input", 256, least=0),
        num_borrowing_layers=num_borrowing,
        has_wide_borrowers=config.flag("use_double_wide_mlp", False),
        full_num_kv_heads=full_kv_heads(config, spec),
    )


def full_kv_heads(config: JsonFile, spec: ModelSpec) -> int:
    """Key and value heads of layers without a window."""
    if config.flag("attention_k_eq_v", False) and config.has("num_global_key_value_heads"):
        num_heads = config.integer("num_global_key_value_heads")
    else:
        num_heads = override(config, "num_key_value_heads", spec.num_kv_heads)
    if spec.num_heads % num_heads:
        raise config.wrong("num_global_key_value_heads", f"a divisor of num_attention_heads ({spec.num_heads})")
    return num_heads


def override(config: JsonFile, key: str, usual: int) -> int:
    """The value of a key in `per_layer_config`, where transformers since 5.20 writes what full layers have alone."""
    layers = config.nested("per_layer_config")
    return next((layers.nested(layer).integer(key, usual) for layer in layers.values), usual)


def full_head_dim(config: JsonFile) -> int:
    return override(config, "head_dim", config.integer("global_head_dim", 512))


GEMMA4: Final = Family(
    name="gemma4_text",
    architecture=None,
    wrappers=("gemma4",),
    defaults={
        "vocab_size": 262_144, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "sliding_window": 512, "rope_parameters": ROPES,
    },
    head_dim=256,
    full_head_dim=full_head_dim,
    qk_norm=True,
    activation="gelu_pytorch_tanh",
    sliding=sliding,
    partial_rotary=1.0,
    norms=GEMMA3.norms,
    keys_are_values=True,
    read=read,
)  # fmt: skip
