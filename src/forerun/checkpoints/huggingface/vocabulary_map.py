"""Read the vocabulary map of a draft with a part of its target's tokens."""

from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from forerun.checkpoints.huggingface.config import CONFIG_NAME, MAP_NAME
from forerun.checkpoints.safetensors.header import read_header
from forerun.checkpoints.safetensors.stored_bytes import read_ids
from forerun.core.errors import CheckpointError
from forerun.core.model_spec import ModelSpec
from forerun.model.vocabulary_map import VocabularyMap
from forerun.text.vocabulary import MAX_IDS

ID_BYTES: Final = {"I32": 4, "I64": 8}
NAMES: Final = ("draft_ids", "target_ids")


def read_vocabulary_map(folder: Path, spec: ModelSpec) -> VocabularyMap:
    """The map in a draft's folder.

    Args:
        spec: the draft's spec.

    Raises:
        CheckpointError: the map is damaged, or contradicts itself or config.json.
    """
    path = folder / MAP_NAME
    tensors = {tensor.name: tensor for tensor in read_header(path, ID_BYTES)}
    if tuple(sorted(tensors)) != NAMES or any(len(tensor.shape) != 1 for tensor in tensors.values()):
        raise _wrong(path, f"it holds {sorted(tensors)[:4]}, but needs one row each of draft_ids and target_ids")
    (num_target,), (num_draft,) = (tensors[name].shape for name in NAMES)
    if num_draft != spec.vocab_size:
        raise _wrong(path, f"it has {num_draft} target_ids, but {CONFIG_NAME} a vocab_size of {spec.vocab_size}")
    if not num_draft <= num_target <= MAX_IDS:
        raise _wrong(path, f"it has {num_target} draft_ids, which must be {num_draft} to {MAX_IDS}")
    draft_ids, target_ids = (read_ids(tensors[name]) for name in NAMES)
    _require_range(path, "draft_ids", draft_ids, num_draft)
    _require_range(path, "target_ids", target_ids, num_target)
    if not bool((target_ids[1:] > target_ids[:-1]).all()):
        raise _wrong(path, "its target_ids are not in ascending order")
    misread = torch.nonzero(draft_ids[target_ids.long()] != torch.arange(num_draft))
    if len(misread):
        first = int(misread[0])
        raise _wrong(path, f"id {first} of the draft stands for {int(target_ids[first])}, which is read as another id")
    return VocabularyMap(target_ids=target_ids.int(), draft_ids=draft_ids.int())


def _require_range(path: Path, name: str, ids: Tensor, end: int) -> None:
    lowest = int(ids.min())
    highest = int(ids.max())
    if lowest < 0 or highest >= end:
        raise _wrong(path, f"its {name} are {lowest} to {highest}, but must be 0 to {end - 1}")


def _wrong(path: Path, seen: str) -> CheckpointError:
    return CheckpointError(f"{path} is not a map of this draft's vocabulary: {seen}: fetch or make the draft again")
