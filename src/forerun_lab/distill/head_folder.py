"""Write a trained head as SpecForge and z-lab publish theirs, so that other engines open it too."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from forerun.checkpoints.huggingface.config import CONFIG_NAME
from forerun.core.output_file import remove, write_whole
from forerun.drafting.heads.kind import HeadSpec
from forerun.model.vocabulary_map import VocabularyMap
from forerun_lab.distill.folder import llama_config, to_text
from forerun_lab.distill.head_kind import TrainableHead


def write_head(
    folder: Path, kind: TrainableHead[Any], spec: HeadSpec, weights: Mapping[str, Tensor], vocabulary: VocabularyMap
) -> None:
    """Write the folder. The config comes last, and without it the folder does not open as a head."""
    tensors = {name: value.to("cpu", torch.bfloat16).contiguous() for name, value in weights.items()}
    remove(folder / CONFIG_NAME)
    stored = save(kind.published(tensors, vocabulary), {"format": "pt"})
    write_whole(folder / "model.safetensors", stored, makes_folder=True)
    num_target_ids = len(vocabulary.draft_ids)
    common = {**llama_config(spec.body), "vocab_size": num_target_ids, "target_hidden_size": spec.target_hidden_size}
    write_whole(folder / CONFIG_NAME, to_text(common | kind.config(spec)))
