"""Qwen3-Next and Qwen3-Coder-Next, Qwen3.5 and 3.6 with experts: Qwen3.5's layers, with experts in every layer.

Every token also goes through a shared expert, whose output has a gate of its own.
"""

from dataclasses import replace
from typing import Final

from forerun.checkpoints.families.family import FULL, LINEAR, Family, with_experts
from forerun.checkpoints.families.qwen3_5 import DEFAULTS, with_delta_nets
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
    architecture=None,
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
)
QWEN3_5_MOE: Final = replace(
    QWEN3_NEXT,
    name="qwen3_5_moe_text",
    wrappers=("qwen3_5_moe",),
    defaults={
        **DEFAULTS,
        **MORE_DEFAULTS,
        "num_hidden_layers": 40,
        "num_experts_per_tok": 8,
        "num_local_experts": 256,
    },
    fuses_nets=False,
)
