"""Qwen3-Next and Qwen3-Coder-Next, Qwen3.5 and 3.6 with experts: Qwen3.5's layers, with experts in every layer.

Every token also goes through a shared expert, whose output has a gate of its own.
"""

from dataclasses import replace
from typing import Final

from forerun.checkpoints.families.family import (
    EXPERT_KEYS,
    FULL,
    LINEAR,
    SHARED_KEY,
    Family,
    with_experts,
    with_gguf_experts,
)
from forerun.checkpoints.families.qwen3_5 import (
    DEFAULTS,
    NET_KEYS,
    QWEN3_5,
    with_delta_nets,
    with_gguf_delta_nets,
    without_draft_head,
)
from forerun.checkpoints.families.qwen3_moe import require_experts_everywhere
from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec


def read(config: JsonFile, spec: ModelSpec) -> ModelSpec:
    """The spec with its delta nets, its experts and the shared one.

    Raises:
        CheckpointError: not all layers have experts.
    """
    require_experts_everywhere(config)
    count = "num_experts" if config.has("num_experts") else "num_local_experts"
    spec = with_experts(config, with_delta_nets(config, spec), count, "num_experts_per_tok", "moe_intermediate_size")
    return replace(spec, shared_size=config.integer("shared_expert_intermediate_size"))


def usual_gguf(keys: JsonFile) -> JsonFile:
    """The keys of a GGUF file without its draft head; the size of layers without experts, which it lacks, is set."""
    keys = without_draft_head(keys)
    return replace(keys, values={"feed_forward_length": keys.values.get(EXPERT_KEYS[-1]), **keys.values})


def read_gguf(keys: JsonFile, spec: ModelSpec) -> ModelSpec:
    spec = with_gguf_experts(keys, with_gguf_delta_nets(keys, spec))
    return replace(spec, shared_size=keys.integer(SHARED_KEY))


def read_gguf_of_next(keys: JsonFile, spec: ModelSpec) -> ModelSpec:
    """The same for Qwen3-Next, whose converter leaves the value heads of one key head together."""
    spec = read_gguf(keys, spec)
    return replace(spec, delta_net=None if spec.delta_net is None else replace(spec.delta_net, has_tiled_keys=False))


MORE_DEFAULTS: Final = {
    "hidden_size": 2048,
    "intermediate_size": 512,  # replaced by that of an expert
    "num_key_value_heads": 2,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
}
QWEN3_NEXT: Final = Family(
    name="qwen3_next",
    architecture="qwen3next",
    defaults={
        **DEFAULTS,
        **MORE_DEFAULTS,
        "vocab_size": 151_936,
        "num_hidden_layers": 48,
        "num_experts_per_tok": 10,
        "num_local_experts": 512,
    },
    attention_bias=True,
    qk_norm=True,
    head_dim=256,
    layer_kinds=(FULL, LINEAR),
    partial_rotary=0.25,
    norm_offset=1.0,
    fuses_nets=True,
    renamed={"mlp.gate": "mlp.router"},
    read=read,
    gguf_norms=QWEN3_5.gguf_norms,
    gguf_usual=usual_gguf,
    read_gguf=read_gguf_of_next,
    gguf_keys=(*NET_KEYS, *EXPERT_KEYS, SHARED_KEY),
)
QWEN3_5_MOE: Final = replace(
    QWEN3_NEXT,
    name="qwen3_5_moe_text",
    architecture="qwen35moe",
    wrappers=("qwen3_5_moe",),
    defaults={
        **DEFAULTS,
        **MORE_DEFAULTS,
        "num_hidden_layers": 40,
        "num_experts_per_tok": 8,
        "num_local_experts": 256,
    },
    fuses_nets=False,
    read_gguf=read_gguf,
)
