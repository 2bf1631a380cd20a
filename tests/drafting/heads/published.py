"""Draft heads in the folders of their trainers, with random weights."""

import atexit
import json
import random
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from forerun.checkpoints.open import open_source
from forerun.core.drafter_config import BUILTIN_TARGET
from forerun.core.model_spec import ModelSpec
from forerun.drafting.heads.dflash import DFlashSpec
from forerun.drafting.heads.eagle import EagleSpec
from tests.drafting.heads.random_heads import dflash_tensors, eagle_tensors, random_body


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


def dflash_config(spec: DFlashSpec, target: ModelSpec) -> dict[str, object]:
    """As z-lab and SpecForge write it."""
    sliding = next((window for window in spec.windows if window is not None), None)
    of_dflash: dict[str, object] = {
        "mask_token_id": spec.mask_token_id,
        "target_layer_ids": list(spec.layer_ids),
        "selector_rank": spec.pair_rank or None,
        "selector_top_k": spec.num_pairs or None,
        "conv_kernel_size": spec.conv_kernel or None,
        "conv_group_size": spec.conv_group or None,
        "sample_from_anchor": spec.drafts_from_root,
    }
    return {
        **body_keys(spec.body, target.vocab_size),
        "model_type": "qwen3",
        "architectures": ["DFlash2DraftModel" if spec.pair_rank else "DFlashDraftModel"],
        "block_size": spec.block_size,
        "num_target_layers": target.num_layers,
        "target_hidden_size": spec.target_hidden_size,
        "layer_types": ["full_attention" if window is None else "sliding_attention" for window in spec.windows],
        "sliding_window": sliding,
        "is_causal": spec.is_causal[0],
        "input_embedding_scale": spec.embedding_scale,
        "output_multiplier": spec.logit_scale,
        "final_logit_softcapping": spec.logit_cap,
        "dflash_config": of_dflash,
    }


def write_dflash(folder: Path, spec: DFlashSpec, target: ModelSpec, *, seed: int = 0, is_alone: bool = True) -> Path:
    """A folder of a DFlash head."""
    tensors = dflash_tensors(spec, target, seed, is_alone=is_alone)
    return write_files(folder, dflash_config(spec, target), {name: value.float() for name, value in tensors.items()})


@cache
def builtin_head(kind: Literal["eagle3", "dflash", "dflash2", "dspark"]) -> str:
    """The folder of a head with random weights for the built-in target, which is deleted at the end of the process."""
    target = open_source(BUILTIN_TARGET).spec()
    rng = random.Random(0)
    folder = Path(mkdtemp(prefix="forerun_test_head_"))
    atexit.register(rmtree, folder, ignore_errors=True)
    body = random_body(
        rng, hidden_size=64, num_heads=4, num_kv_heads=2, head_dim=16, intermediate_size=96, num_layers=1,
        vocab_size=2048 if kind == "eagle3" else target.vocab_size, qk_norm=kind != "eagle3", max_positions=2048,
    )  # fmt: skip
    common = {"body": body, "target_hidden_size": target.hidden_size, "layer_ids": (2, 5, 9)}
    if kind == "eagle3":
        return str(write_eagle(folder, EagleSpec(**common), target))
    options: dict[str, Any] = {}
    if kind == "dflash2":
        options = {"conv_kernel": 2, "conv_group": 16, "pair_rank": 8, "num_pairs": 16}
    if kind == "dspark":
        options = {"markov_rank": 8, "has_markov_gate": True, "drafts_from_root": True}
    spec = DFlashSpec(**common, block_size=8, mask_token_id=0, windows=(None,), is_causal=(False,), **options)
    return str(write_dflash(folder, spec, target))
