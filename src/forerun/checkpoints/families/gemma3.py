"""Gemma 3: norms around sublayers with weights 1 + w, a scaled embedding, sliding layers with another rotation."""

from dataclasses import replace
from math import sqrt
from typing import Final

from forerun.checkpoints.families.family import Family, all_but_every, typed_or_all_but_every
from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec, RopeSpec

PERIOD: Final = 6  # one full layer after five with a window; GGUF files may lack the number, and local theta too
LOCAL_THETA: Final = 10_000.0
QUERY_SCALAR: Final = 256.0
LARGEST: Final = 62  # layers of 27B, the only size whose queries are not scaled by its head size


def sliding(config: JsonFile) -> tuple[int, ...]:
    return typed_or_all_but_every(config, config.integer("sliding_window_pattern", PERIOD))


def gguf_sliding(keys: JsonFile) -> tuple[int, ...]:
    period = keys.integer("attention.sliding_window_pattern", PERIOD)
    return all_but_every(period, keys.integer("block_count"))


def common(spec: ModelSpec) -> ModelSpec:
    """Values that neither folders nor GGUF files hold, also for Gemma 4."""
    return replace(
        spec,
        norms="around",
        wide_norms=True,
        gate="gelu_tanh",
        embedding_scale=sqrt(spec.hidden_size),
        rounds_embedding_scale=True,
    )


def read(config: JsonFile, spec: ModelSpec) -> ModelSpec:
    """The values of a folder.

    Raises:
        CheckpointError: it needs logit caps or attention in both directions.
    """
    for key in ("final_logit_softcapping", "attn_logit_softcapping"):
        if config.has(key):
            raise config.wrong(key, "null: no released Gemma 3 caps these")
    if config.flag("use_bidirectional_attention", False):
        raise config.wrong("use_bidirectional_attention", "false: a text model's attention is causal")
    local = RopeSpec(theta=config.number("rope_local_base_freq"))
    return replace(
        common(spec),
        attention_scale=config.number("query_pre_attn_scalar", QUERY_SCALAR) ** -0.5,
        sliding_rope=spec.sliding_rope or local,
    )


def read_gguf(keys: JsonFile, spec: ModelSpec) -> ModelSpec:
    head_size = spec.hidden_size / spec.num_heads if spec.num_layers == LARGEST else spec.head_dim
    return replace(
        common(spec),
        attention_scale=keys.number("attention.scale", head_size**-0.5),
        sliding_rope=RopeSpec(theta=keys.number("rope.freq_base_swa", LOCAL_THETA)),
        rope=replace(spec.rope, theta=keys.number("rope.freq_base", 1e6)),
    )


GEMMA3: Final = Family(
    name="gemma3_text",
    architecture="gemma3",
    wrappers=("gemma3",),
    defaults={
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "sliding_window": 4096,
        "rope_theta": 1e6,
        "rope_local_base_freq": LOCAL_THETA,
    },
    head_dim=256,
    qk_norm=True,
    activation="gelu_pytorch_tanh",
    sliding=sliding,
    gguf_sliding=gguf_sliding,
    norms={
        "attention_norm": "input_layernorm",
        "attention_post_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "mlp_post_norm": "post_feedforward_layernorm",
    },
    norm_offset=1.0,
    read=read,
    scales_attention=True,
    read_gguf=read_gguf,
    gguf_keys=("attention.sliding_window_pattern", "rope.freq_base_swa"),
)
