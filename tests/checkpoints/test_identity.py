"""A model's identity: the same wherever the model lies, another one for every other model."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from forerun.checkpoints.huggingface.stored_tensors import catalogue
from forerun.checkpoints.identity import SAMPLE_BYTES
from forerun.checkpoints.safetensors.header import ITEM_BYTES
from forerun.core.errors import CheckpointError
from tests.checkpoints.folders import SINGLE, model_identity, random_tensors, write_shards, write_single

LARGE = "model.embed_tokens.weight"


def write(folder: Path, tensors: dict[str, Tensor], **changes: object) -> Path:
    folder.mkdir()
    return write_single(folder, tensors, **changes)


def large_tensors() -> dict[str, Tensor]:
    """One tensor is larger than what is read of it."""
    tensors = random_tensors()
    return {**tensors, LARGE: torch.arange(4096.0).reshape(512, 8)}


def test_an_identity_is_16_hexadecimal_digits_and_always_the_same(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", random_tensors())
    identity = model_identity(folder)
    assert len(identity) == 16
    assert set(identity) <= set("0123456789abcdef")
    assert model_identity(folder) == identity


def test_neither_place_nor_file_times_nor_shards_change_it(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", random_tensors())
    identity = model_identity(folder)
    assert model_identity(shutil.copytree(folder, tmp_path / "b", copy_function=shutil.copyfile)) == identity
    (tmp_path / "c").mkdir()
    assert model_identity(write_shards(tmp_path / "c", random_tensors())) == identity


def test_keys_that_are_no_part_of_the_architecture_do_not_count(tmp_path: Path) -> None:
    tensors = random_tensors()
    other = write(tmp_path / "b", tensors, _name_or_path="elsewhere", transformers_version="5.0")
    assert model_identity(write(tmp_path / "a", tensors)) == model_identity(other)


@pytest.mark.parametrize("name", sorted(random_tensors()))
def test_a_change_to_any_tensor_is_another_model(tmp_path: Path, name: str) -> None:
    tensors = random_tensors()
    changed = {**tensors, name: tensors[name] + 1.0}
    assert model_identity(write(tmp_path / "a", tensors)) != model_identity(write(tmp_path / "b", changed))


@pytest.mark.parametrize(
    ("place", "is_seen"),
    [
        (lambda size: 0, True),
        (lambda size: SAMPLE_BYTES - 1, True),
        (lambda size: SAMPLE_BYTES, False),
        (lambda size: size - SAMPLE_BYTES - 1, False),
        (lambda size: size - SAMPLE_BYTES, True),
        (lambda size: size - 1, True),
    ],
)
def test_only_both_ends_of_a_large_tensor_are_read(tmp_path: Path, place: Callable[[int], int], is_seen: bool) -> None:
    folder = write(tmp_path / "a", large_tensors())
    identity = model_identity(folder)
    stored = catalogue(folder)[LARGE]
    assert stored.num_bytes == 4096 * ITEM_BYTES["F32"] > 2 * SAMPLE_BYTES
    raw = bytearray((folder / SINGLE).read_bytes())
    raw[stored.offset + place(stored.num_bytes)] ^= 1
    (folder / SINGLE).write_bytes(raw)
    assert (model_identity(folder) != identity) == is_seen


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        model_identity(tmp_path)
    folder = write(tmp_path / "a", random_tensors())
    (folder / SINGLE).write_bytes((folder / SINGLE).read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="damaged"):
        model_identity(folder)
