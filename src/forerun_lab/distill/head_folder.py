"""Write a trained head as SpecForge and z-lab publish theirs, so that other engines open it too."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from forerun.checkpoints.huggingface.config import CONFIG_NAME
from forerun.core.output_file import remove, write_whole
from forerun.drafting.heads.dflash import DFlashSpec
from forerun.drafting.heads.eagle import EagleSpec
from forerun.model.vocabulary_map import VocabularyMap
from forerun_lab.distill.folder import llama_config, to_text
from forerun_lab.distill.head_shape import MadeSpec


def write_head(folder: Path, spec: MadeSpec, weights: Mapping[str, Tensor], vocabulary: VocabularyMap) -> None:
    """Write the folder. The config comes last, and without it the folder does not open as a head."""
    tensors = {name: value.to("cpu", torch.bfloat16).contiguous() for name, value in weights.items()}
    if isinstance(spec, EagleSpec):
        tensors = {published(name): value for name, value in tensors.items()}
        ids = vocabulary.target_ids.long().cpu()
        tensors |= {"d2t": ids - torch.arange(len(ids)), "t2d": vocabulary.is_known.cpu()}
    remove(folder / CONFIG_NAME)
    write_whole(folder / "model.safetensors", save(tensors, {"format": "pt"}), makes_folder=True)
    config = to_text(head_config(spec, len(vocabulary.draft_ids)))
    write_whole(folder / CONFIG_NAME, config)


def published(name: str) -> str:
    """EAGLE's name for a tensor of the first layer."""
    return f"midlayer.{name.removeprefix('layers.0.')}" if name.startswith("layers.0.") else name


def head_config(spec: MadeSpec, num_target_ids: int) -> dict[str, object]:
    """config.json of a head for a target with this many tokens."""
    common = {**llama_config(spec.body), "vocab_size": num_target_ids, "target_hidden_size": spec.target_hidden_size}
    match spec:
        case EagleSpec():
            return {
                **common,
                "architectures": ["LlamaForCausalLMEagle3"],
                "draft_vocab_size": spec.body.vocab_size,
                "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": spec.layer_ids},
            }
        case DFlashSpec():
            return {
                **common,
                "architectures": ["DFlashDraftModel"],
                "model_type": "qwen3",
                "block_size": spec.block_size,
                "dflash_config": {"mask_token_id": spec.mask_token_id, "target_layer_ids": spec.layer_ids},
            }
