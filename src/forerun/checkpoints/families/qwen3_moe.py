"""Qwen3 with experts in every layer: Qwen3-30B-A3B, Qwen3-Coder-30B-A3B, Qwen3-235B-A22B."""

from typing import Final

from forerun.checkpoints.families.family import EXPERT_KEYS, Family, with_experts, with_gguf_experts
from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec


def require_experts_everywhere(config: JsonFile) -> None:
    """Refuse other shares of experts than those that we compute, and layers without experts.

    Raises:
        CheckpointError: names the key.
    """
    if not config.flag("norm_topk_prob"):
        raise config.wrong("norm_topk_prob", "true: the shares of a token's experts must add up to 1")
    if config.integer("decoder_sparse_step") != 1:
        raise config.wrong("decoder_sparse_step", "1: all layers must have experts")
    if config.values.get("mlp_only_layers"):
        raise config.wrong("mlp_only_layers", "empty: all layers must have experts")


def read(config: JsonFile, spec: ModelSpec) -> ModelSpec:
    require_experts_everywhere(config)
    if config.flag("use_sliding_window"):
        raise config.wrong("use_sliding_window", "false, the only supported value in this family")
    count = "num_experts" if config.has("num_experts") else "num_local_experts"  # the latter since transformers 5
    return with_experts(config, spec, count, "num_experts_per_tok", "moe_intermediate_size")


QWEN3_MOE: Final = Family(
    name="qwen3_moe",
    architecture="qwen3moe",
    defaults={
        "vocab_size": 151_936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "use_sliding_window": False,
        "decoder_sparse_step": 1,
        "moe_intermediate_size": 768,
        "num_experts_per_tok": 8,
        "num_local_experts": 128,
        "norm_topk_prob": False,
    },
    attention_bias=True,
    qk_norm=True,
    renamed={"mlp.gate": "mlp.router"},
    read=read,
    read_gguf=with_gguf_experts,
    gguf_keys=EXPERT_KEYS,
)
