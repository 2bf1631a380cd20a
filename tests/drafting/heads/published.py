"""Draft heads in the folders of their trainers, with random weights."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from forerun.core.head_spec import EagleSpec
from forerun.core.model_spec import ModelSpec
from tests.drafting.heads.random_heads import eagle_tensors


def body_keys(body: ModelSpec, vocab_size: int) -> dict[str, object]:
    """The keys of a Llama's config.json that a head has too."""
    return {
        "model_type": "llama",
        "hidden_size": body.hidden_size,
        "num_hidden_layers": body.num_layers,
        "num_attention_heads": body.num_heads,
        "num_key_value_heads": body.num_kv_heads,
        "head_dim": body.head_dim,
        "intermediate_size": body.intermediate_size,
        "max_position_embeddings": body.max_positions,
        "rms_norm_eps": body.norm_eps,
        "rope_theta": body.rope.theta,
        "vocab_size": vocab_size,
    }


def write_files(folder: Path, config: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def flat_config(spec: EagleSpec, target: ModelSpec) -> dict[str, object]:
    """As EAGLE, SpecForge and AngelSlim write it."""
    ids = None if spec.layer_ids is None else list(spec.layer_ids)
    return {
        **body_keys(spec.body, target.vocab_size),
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": spec.body.vocab_size,
        "target_hidden_size": spec.target_hidden_size,
        "norm_before_residual": spec.norms_residual,
        "norm_output": spec.norms_logits,
        **({} if ids is None else {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}}),
    }


def nested_config(spec: EagleSpec, target: ModelSpec) -> dict[str, object]:
    """As the speculators library writes it."""
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "transformer_layer_config": body_keys(spec.body, target.vocab_size),
        "draft_vocab_size": spec.body.vocab_size,
        "target_hidden_size": spec.target_hidden_size,
        "norm_before_residual": spec.norms_residual,
        "norm_output": spec.norms_state,
        "eagle_aux_hidden_state_layer_ids": None if spec.layer_ids is None else list(spec.layer_ids),
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "some/target"}},
    }


def with_map(tensors: Mapping[str, Tensor], target_ids: Tensor, num_target: int) -> dict[str, Tensor]:
    """The tensors of a head whose outputs stand for these tokens of the target."""
    is_known = torch.zeros(num_target, dtype=torch.bool)
    is_known[target_ids] = True
    return {**tensors, "d2t": target_ids - torch.arange(len(target_ids)), "t2d": is_known}


def write_eagle(folder: Path, spec: EagleSpec, target: ModelSpec, *, seed: int = 0) -> Path:
    """A flat folder of a head with as many tokens as `spec` says, spread over the target's."""
    number = spec.body.vocab_size
    target_ids = torch.arange(number) * (target.vocab_size // number)
    tensors = eagle_tensors(spec, target, seed)
    named = {name.replace("layers.0.", "midlayer."): tensor.float() for name, tensor in tensors.items()}
    return write_files(folder, flat_config(spec, target), with_map(named, target_ids, target.vocab_size))
