"""Write a trained draft as a folder that any engine opens: a Llama, its target's tokenizer, and a vocabulary map."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from forerun.checkpoints.huggingface.config import CONFIG_NAME, MAP_NAME
from forerun.checkpoints.huggingface.names import tensor_plan
from forerun.core.model_spec import ModelSpec
from forerun.core.output_file import remove, write_whole
from forerun.drafting.heads.kind import HeadSpec
from forerun.model.vocabulary_map import VocabularyMap
from forerun.text.tokenizer import Tokenizer
from forerun_lab.distill.head_kind import TrainableHead


def write_draft(
    folder: Path,
    spec: ModelSpec,
    weights: Mapping[str, Tensor],
    vocabulary: VocabularyMap,
    tokenizer: Tokenizer,
    stop_ids: Sequence[int],
) -> None:
    """Write a draft, in place of an earlier one in the same folder.

    If a run continues, only the weights change, and they are one file. If more files change, config.json is removed
    while they are written, so that files of two drafts never open as one.

    Args:
        weights: keyed by the names of `tensor_plan`.
        stop_ids: the target's stop tokens, as ids of its own vocabulary.
    """
    ids = {"target_ids": vocabulary.target_ids, "draft_ids": vocabulary.draft_ids}
    is_part = len(vocabulary.target_ids) < len(vocabulary.draft_ids)
    files = {
        MAP_NAME: save({name: value.cpu().contiguous() for name, value in ids.items()}) if is_part else None,
        "tokenizer.json": tokenizer.to_json().encode(),
        "generation_config.json": to_text({"eos_token_id": list(stop_ids)}).encode(),
        CONFIG_NAME: to_text(llama_config(spec)).encode(),
    }
    others = {name: raw for name, raw in files.items() if contents(folder / name) != raw}
    if others:
        remove(folder / CONFIG_NAME)
    write_whole(folder / "model.safetensors", save(stored_tensors(spec, weights), {"format": "pt"}), makes_folder=True)
    for name, raw in ({**others, CONFIG_NAME: files[CONFIG_NAME]} if others else {}).items():
        if raw is None:
            remove(folder / name)
        else:
            write_whole(folder / name, raw)


def contents(path: Path) -> bytes | None:
    """A file's contents; None if there is no file."""
    return path.read_bytes() if path.exists() else None


def stored_tensors(spec: ModelSpec, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every tensor of a checkpoint in bfloat16, keyed by its Hugging Face name."""
    return {
        name: weights[place.name][place.row_start : place.row_start + place.shape[0]]
        .to("cpu", torch.bfloat16)
        .contiguous()
        for name, place in tensor_plan(spec).items()
    }


def llama_config(spec: ModelSpec) -> dict[str, object]:
    """config.json as transformers writes it for a Llama."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.intermediate_size,
        "max_position_embeddings": spec.max_positions,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": spec.rope.theta,
        "attention_bias": spec.out_bias,
        "mlp_bias": spec.mlp_bias,
        "tie_word_embeddings": spec.tied_embeddings,
        "torch_dtype": "bfloat16",
    }


def to_text(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"


def write_head(
    folder: Path, kind: TrainableHead[Any], spec: HeadSpec, weights: Mapping[str, Tensor], vocabulary: VocabularyMap
) -> None:
    """Write a trained head as SpecForge and z-lab publish theirs, so that other engines open it too.

    The config comes last, and without it the folder does not open as a head.
    """
    tensors = {name: value.to("cpu", torch.bfloat16).contiguous() for name, value in weights.items()}
    remove(folder / CONFIG_NAME)
    stored = save(kind.published(tensors, vocabulary), {"format": "pt"})
    write_whole(folder / "model.safetensors", stored, makes_folder=True)
    num_target_ids = len(vocabulary.draft_ids)
    common = {**llama_config(spec.body), "vocab_size": num_target_ids, "target_hidden_size": spec.target_hidden_size}
    write_whole(folder / CONFIG_NAME, to_text(common | kind.config(spec)))
