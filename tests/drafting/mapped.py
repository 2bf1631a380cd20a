"""Drafts that have a part of their target's tokens, made by choosing rows of a model's embedding and head."""

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from forerun.checkpoints.huggingface.config import MAP_NAME
from forerun.core.model_spec import ModelSpec
from forerun.model.vocabulary_map import VocabularyMap
from tests.tiny import Weights

OUR_ROWS = ("embedding.weight", "head.weight")
STORED_ROWS = ("model.embed_tokens.weight", "lm_head.weight")


def random_map(rng: random.Random, num_target: int, *, num_draft: int | None = None) -> VocabularyMap:
    """Any of the target's tokens; the others are read as any of the draft's."""
    num_draft = rng.randint(1, num_target) if num_draft is None else num_draft
    target_ids = sorted(rng.sample(range(num_target), num_draft))
    draft_ids = [rng.randrange(num_draft) for _ in range(num_target)]
    for draft_id, target_id in enumerate(target_ids):
        draft_ids[target_id] = draft_id
    return VocabularyMap(
        target_ids=torch.tensor(target_ids, dtype=torch.int32), draft_ids=torch.tensor(draft_ids, dtype=torch.int32)
    )


def chosen_rows(
    weights: Mapping[str, Tensor], vocabulary: VocabularyMap, names: tuple[str, ...] = OUR_ROWS
) -> dict[str, Tensor]:
    """The weights of the same model with only these tokens."""
    ids = vocabulary.target_ids.long()
    return {name: weight[ids].clone() if name in names else weight for name, weight in weights.items()}


def mapped_model(spec: ModelSpec, weights: Weights, vocabulary: VocabularyMap) -> tuple[ModelSpec, Weights]:
    """The same model with only these tokens."""
    return replace(spec, vocab_size=vocabulary.num_columns), chosen_rows(weights, vocabulary)


def write_map(folder: Path, **ids: Tensor) -> None:
    save_file(ids, folder / MAP_NAME)


def write_mapped(folder: Path, source: Path, vocabulary: VocabularyMap) -> Path:
    """The model of a Hugging Face folder with only these tokens, in a folder of its own."""
    copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": vocabulary.num_columns}))
    tensors = load_file(folder / "model.safetensors")
    save_file(chosen_rows(tensors, vocabulary, STORED_ROWS), folder / "model.safetensors")
    write_map(folder, target_ids=vocabulary.target_ids, draft_ids=vocabulary.draft_ids)
    return folder
