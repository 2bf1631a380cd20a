"""A tiny random checkpoint of every supported family, written by transformers itself."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SIZES: Final[dict[str, Any]] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "bos_token_id": None,
    "eos_token_id": None,
    "dtype": "float32",
}
LLAMA3_ROPE: Final[dict[str, Any]] = {
    "rope_theta": 500_000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,  # so that even short texts reach the stretched positions
    },
}
LINEAR_ROPE: Final[dict[str, Any]] = {"rope_theta": 100_000.0, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}
YARN_ROPE: Final[dict[str, Any]] = {
    "rope_theta": 10_000.0,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
}
YARN_MSCALE: Final[dict[str, Any]] = {
    "rope_theta": 500.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 1.5,
        "mscale_all_dim": 0.5,
        "truncate": False,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How transformers builds one kind of model: its classes and what is particular to it."""

    config: Callable[..., Any]
    model: Callable[[Any], PreTrainedModel]
    changes: dict[str, Any]

    def build(self) -> PreTrainedModel:
        """A model whose weights are large enough that its logits differ by several units and a text by no rut."""
        model: PreTrainedModel = self.model(self.config(**{**SIZES, **self.changes})).train(False)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "norm" in name:
                    weight.uniform_(0.5, 1.5, generator=generator)
                else:
                    weight.normal_(0.0, 0.2, generator=generator)
        return model

    def save(self, folder: Path) -> "Golden":
        model = self.build()
        model.save_pretrained(folder)
        return Golden(folder=folder, model=model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """A checkpoint folder and the model that must be matched."""

    folder: Path
    model: PreTrainedModel


def llama(**changes: Any) -> Family:
    return Family(config=LlamaConfig, model=LlamaForCausalLM, changes=changes)


def qwen2(**changes: Any) -> Family:
    return Family(config=Qwen2Config, model=Qwen2ForCausalLM, changes=changes)


FAMILIES: Final[dict[str, Family]] = {
    "llama2": llama(num_key_value_heads=6, tie_word_embeddings=False),
    "llama3": llama(**LLAMA3_ROPE),
    "llama3.2": llama(**LLAMA3_ROPE, tie_word_embeddings=True, head_dim=16),
    "llama_biased": llama(attention_bias=True, mlp_bias=True),
    "qwen2": qwen2(rms_norm_eps=1e-6),
    "qwen2.5": qwen2(tie_word_embeddings=True, rope_theta=1e6),
    "qwen3": Family(config=Qwen3Config, model=Qwen3ForCausalLM, changes={"head_dim": 16, "tie_word_embeddings": True}),
    "qwen2_late_window": qwen2(use_sliding_window=True, sliding_window=16, max_window_layers=3),  # of three layers
    "qwen2_yarn": qwen2(**YARN_ROPE),
    "llama_yarn_mscale": llama(**YARN_MSCALE),
    "mistral": Family(config=MistralConfig, model=MistralForCausalLM, changes={"sliding_window": None}),
    "mistral_v0.1": Family(config=MistralConfig, model=MistralForCausalLM, changes={"sliding_window": 112}),
    "deepseek_coder": llama(**LINEAR_ROPE),
    "r1_distill_llama": llama(**LLAMA3_ROPE, tie_word_embeddings=False),
    "r1_distill_qwen": qwen2(tie_word_embeddings=False, num_key_value_heads=3),
}
