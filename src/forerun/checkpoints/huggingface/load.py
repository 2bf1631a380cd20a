"""A checkpoint's weights as the tensors the model computes with."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from forerun.checkpoints.huggingface.config import CONFIG_NAME
from forerun.checkpoints.huggingface.names import (
    EMBEDDING_NAME,
    HEAD_NAME,
    TensorPlace,
    fused_shapes,
    is_ignorable,
    tensor_plan,
)
from forerun.checkpoints.huggingface.stored_tensors import catalogue
from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.checkpoints.safetensors.reader import read_into
from forerun.core.errors import CheckpointError
from forerun.core.json_file import short
from forerun.core.model_spec import ModelSpec

MAX_LISTED: Final = 3


def load_weights(
    folder: Path,
    spec: ModelSpec,
    *,
    dtype: torch.dtype,
    device: str = "cpu",
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Tensor]:
    """Every weight of the model, under the names of `names.tensor_plan`.

    Everything is checked before the first weight is read. Each stored tensor is then read once, in chunks, into its
    rows of the fused weight, so that the peak is the weights themselves and one chunk.

    Args:
        folder: holds model.safetensors, or model.safetensors.index.json and its shards.
        on_progress: called with bytes read so far and bytes to read in all, after each chunk.

    Raises:
        CheckpointError: the folder does not hold exactly the tensors of `spec`; names file and tensor.
    """
    present = catalogue(folder)
    check_depth(folder, present, spec)
    plan = tensor_plan(spec)
    stored = match_tensors(folder, present, plan, spec)
    weights = {name: torch.empty(shape, dtype=dtype, device=device) for name, shape in fused_shapes(plan).items()}
    targets = [_rows(weights, plan[tensor.name]) for tensor in stored]
    num_total, num_done = sum(tensor.num_bytes for tensor in stored), 0
    for num_bytes in read_into(stored, targets):
        num_done += num_bytes
        if on_progress is not None:
            on_progress(num_done, num_total)
    return weights


def check_depth(folder: Path, stored: Mapping[str, StoredTensor], spec: ModelSpec) -> None:
    """Refuse more layers than can be stored, before anything is allocated per layer."""
    if spec.num_layers > len(stored):
        raise CheckpointError(
            f"{folder / CONFIG_NAME}: num_hidden_layers is {spec.num_layers}, but the folder holds {len(stored)} "
            "tensors in all: check that config.json and weights belong together"
        )


def _rows(weights: Mapping[str, Tensor], place: TensorPlace) -> Tensor:
    return weights[place.name][place.row_start : place.row_start + place.shape[0]]


def match_tensors(
    folder: Path, stored: Mapping[str, StoredTensor], plan: Mapping[str, TensorPlace], spec: ModelSpec
) -> list[StoredTensor]:
    """The tensors to read, in file order, once they are known to be exactly those of the plan."""
    for tensor in stored.values():
        if tensor.name in plan:
            _check_place(folder, tensor, plan[tensor.name])
        elif tensor.name == HEAD_NAME and spec.tied_embeddings:
            _check_place(folder, tensor, plan[EMBEDDING_NAME])
        elif not is_ignorable(tensor.name):
            raise CheckpointError(
                f"{tensor.path} holds tensor {short(tensor.name)}, which a {spec.family} model of "
                f"{folder / CONFIG_NAME} does not have: check that config.json and weights belong together"
            )
    missing = [name for name in plan if name not in stored]
    if missing:
        raise CheckpointError(_missing_message(folder, missing, spec))
    return [tensor for tensor in stored.values() if tensor.name in plan]


def _check_place(folder: Path, tensor: StoredTensor, place: TensorPlace) -> None:
    if tensor.dtype not in place.dtypes:
        raise CheckpointError(
            f"{tensor.path}: tensor {short(tensor.name)} is stored as {tensor.dtype}, but must be "
            f"{' or '.join(place.dtypes)} as {folder / CONFIG_NAME} has it: check that config.json and weights belong "
            "together"
        )
    if tensor.shape != place.shape:
        raise CheckpointError(
            f"{tensor.path}: tensor {short(tensor.name)} has shape {list(tensor.shape)}, but "
            f"{folder / CONFIG_NAME} needs {list(place.shape)}: check that config.json and weights belong together"
        )


def _missing_message(folder: Path, missing: list[str], spec: ModelSpec) -> str:
    listed = ", ".join(repr(name) for name in missing[:MAX_LISTED])
    more = f" and {len(missing) - MAX_LISTED} more" if len(missing) > MAX_LISTED else ""
    hint = (
        "if the head is shared with the embedding, config.json must set tie_word_embeddings to true"
        if missing == [HEAD_NAME]
        else "check that config.json and weights belong together, or fetch the weights again"
    )
    return f"the weights in {folder} lack tensor {listed}{more}, which {folder / CONFIG_NAME} needs: {hint}"
