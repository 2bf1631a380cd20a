"""The map in a draft's folder: read as it lies there, and whatever is wrong with it is refused in one line."""

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from forerun.checkpoints.huggingface.config import read_model_spec
from forerun.checkpoints.huggingface.folder import HuggingFaceFolder
from forerun.checkpoints.huggingface.vocabulary_map import read_vocabulary_map
from forerun.core.errors import CheckpointError
from forerun.model.vocabulary_map import VocabularyMap
from tests.checkpoints.folders import write_config
from tests.drafting.mapped import random_map, write_map

# LLAMA of `folders` has 16 tokens; here they are a part of 19.
TARGET_IDS = [*range(14), 16, 18]
DRAFT_IDS = [*range(14), 0, 3, 14, 15, 15]


def ids(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def read(folder: Path) -> VocabularyMap:
    return read_vocabulary_map(folder, read_model_spec(write_config(folder)))


def changed(values: list[int], place: int, value: int) -> Tensor:
    return ids([*values[:place], value, *values[place + 1 :]])


def test_a_folder_without_a_map_has_none(tmp_path: Path) -> None:
    assert HuggingFaceFolder(name="m", folder=tmp_path).vocabulary_map() is None


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_what_lies_there_is_read(tmp_path: Path, dtype: torch.dtype) -> None:
    written = random_map(random.Random(3), 40, num_draft=16)
    write_map(tmp_path, target_ids=written.target_ids.to(dtype), draft_ids=written.draft_ids.to(dtype))
    found = read(tmp_path)
    assert torch.equal(found.target_ids, written.target_ids)
    assert torch.equal(found.draft_ids, written.draft_ids)


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ({"target_ids": ids(TARGET_IDS)}, "needs one row each"),
        ({"target_ids": ids(TARGET_IDS), "draft_ids": ids([[0]])}, "needs one row each"),  # type: ignore[list-item]
        ({"target_ids": ids(TARGET_IDS[:-1])}, "15 target_ids, but config.json a vocab_size of 16"),
        ({"draft_ids": ids(DRAFT_IDS[:15])}, "15 draft_ids, which must be 16 to"),
        ({"draft_ids": ids(DRAFT_IDS).float()}, "stored as F32"),
        ({"draft_ids": changed(DRAFT_IDS, 3, 16)}, "draft_ids are 0 to 16, but must be 0 to 15"),
        ({"draft_ids": changed(DRAFT_IDS, 3, -1)}, "draft_ids are -1 to 15"),
        ({"target_ids": changed(TARGET_IDS, 15, 19)}, "target_ids are 0 to 19, but must be 0 to 18"),
        ({"draft_ids": changed(DRAFT_IDS, 3, 0).long() + 2**32}, "draft_ids are 4294967296 to"),
        ({"target_ids": changed(TARGET_IDS, 0, -(2**31))}, "target_ids are -2147483648 to"),
        ({"target_ids": changed(TARGET_IDS, 3, 2)}, "target_ids are not in ascending order"),
        ({"draft_ids": changed(DRAFT_IDS, 16, 3)}, "id 14 of the draft stands for 16, which is read as another id"),
    ],
)
def test_a_forged_map_is_refused(tmp_path: Path, tensors: dict[str, Tensor], why: str) -> None:
    good = {} if len(tensors) == 1 and "needs" in why else {"target_ids": ids(TARGET_IDS), "draft_ids": ids(DRAFT_IDS)}
    write_map(tmp_path, **{**good, **tensors})
    with pytest.raises(CheckpointError, match=why):
        read(tmp_path)
