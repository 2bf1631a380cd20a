"""gpt-oss: experts with a clamped gate, attention sinks, biases, every other layer with a window."""

from dataclasses import replace
from functools import partial
from typing import Final

from forerun.checkpoints.families.family import (
    EXPERT_KEYS,
    Family,
    all_but_every,
    typed_or_all_but_every,
    with_experts,
    with_gguf_experts,
)
from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec

PERIOD: Final = 2  # one full layer after one with a window
ROPE: Final = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
GATE: Final = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}  # as `ModelSpec.gate` has them


def of_all(spec: ModelSpec) -> ModelSpec:
    """The spec with the values that all models of the family have."""
    return replace(spec, gate="clamped", wide_norms=True, attention_sinks=True, mlp_bias=True)


def read(config: JsonFile, spec: ModelSpec) -> ModelSpec:
    for key, value in GATE.items():
        if config.number(key, value) != value:
            raise config.wrong(key, f"{value}, the value of the only supported gate of this family")
    chosen = "experts_per_token" if config.has("experts_per_token") else "num_experts_per_tok"
    return of_all(with_experts(config, spec, "num_local_experts", chosen, "intermediate_size"))


def read_gguf(keys: JsonFile, spec: ModelSpec) -> ModelSpec:
    return of_all(replace(with_gguf_experts(keys, spec), rope=replace(spec.rope, truncate=False)))


def gguf_sliding(keys: JsonFile) -> tuple[int, ...]:
    return all_but_every(PERIOD, keys.integer("block_count"))


GPT_OSS: Final = Family(
    name="gpt_oss",
    architecture="gpt-oss",
    defaults={
        "vocab_size": 201_088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150_000.0,
        "rope_parameters": ROPE,
        "sliding_window": 128,
        "attention_bias": True,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
    },
    attention_bias=True,
    head_dim=64,
    sliding=partial(typed_or_all_but_every, period=PERIOD),
    gguf_sliding=gguf_sliding,
    gguf_norms={"attention_norm": "attn_norm", "mlp_norm": "post_attention_norm"},
    read=read,
    read_gguf=read_gguf,
    gguf_keys=EXPERT_KEYS,
    stacks_experts=True,
)
