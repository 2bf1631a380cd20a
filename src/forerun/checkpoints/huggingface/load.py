"""Loads a checkpoint's weights as the tensors that the model computes with."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Unpack

from torch import Tensor

from forerun.checkpoints.families.known import BY_NAME
from forerun.checkpoints.huggingface.config import CONFIG_NAME
from forerun.checkpoints.huggingface.names import (
    EMBEDDING_NAME,
    HEAD_NAME,
    TensorPlace,
    by_weight,
    fused_of,
    is_ignorable,
    listed,
    tensor_plan,
)
from forerun.checkpoints.huggingface.plain_names import plain_names
from forerun.checkpoints.huggingface.stored_tensors import catalogue
from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.checkpoints.source import Reading
from forerun.checkpoints.stored_weights import StoredWeights, Traits
from forerun.core.errors import CheckpointError
from forerun.core.json_file import short
from forerun.core.model_spec import ModelSpec
from forerun.model.rope import head_order


def open_weights(folder: Path, spec: ModelSpec, **reading: Unpack[Reading]) -> StoredWeights:
    """Open a folder of plain weights as a WeightSource. All tensors are checked before the first weight is read.

    Args:
        folder: holds model.safetensors, or model.safetensors.index.json and its shards.

    Raises:
        CheckpointError: the folder does not hold exactly the tensors of `spec`; names file and tensor.
    """
    stored = catalogue(folder)
    check_depth(folder, stored, spec)
    plan = tensor_plan(spec)
    present = plain_names(stored, spec, plan)
    match_tensors(folder, present, plan, spec)
    return StoredWeights(by_weight(plan, present), traits=traits_of(spec), **reading)


def traits_of(spec: ModelSpec) -> Traits:
    """How a folder's tensors differ from the model's weights."""
    family = BY_NAME[spec.family]
    return Traits(
        is_wide=spec.wide_norms,
        norm_offset=family.norm_offset,
        has_log_rates=True,
        head_order=stored_order(spec, is_interleaved=family.is_interleaved),
        head_dim=spec.head_dim,
    )


def refuse_other_rows(folder: Path, spec: ModelSpec, how: str) -> None:
    """Refuse packed layers whose rows would have to be divided or reordered."""
    family = BY_NAME[spec.family]
    if any(fused_of(spec).values()) or traits_of(spec).head_order or family.stacks_experts:
        raise CheckpointError(
            f"{folder} holds a {spec.family} model {how}, whose weights would have to be divided or reordered, "
            "which is supported in plain folders and GGUF files only: choose one of these"
        )


def stored_order(spec: ModelSpec, *, is_interleaved: bool) -> Sequence[int]:
    """See `model.rope.head_order`."""
    rotated = spec.rope.rotated_dims if spec.rope.kind != "proportional" else None
    return head_order(rotated or spec.head_dim, spec.head_dim, is_interleaved=is_interleaved)


def load_weights(folder: Path, spec: ModelSpec, **reading: Unpack[Reading]) -> dict[str, Tensor]:
    """Load all weights of such a folder, keyed by the names of `names.tensor_plan`. The peak memory is little more than
    the weights."""
    weights = open_weights(folder, spec, **reading)
    return {name: weights.tensor(name) for name in weights.names}


def check_depth(folder: Path, stored: Mapping[str, StoredTensor], spec: ModelSpec) -> None:
    """Refuse more layers than can be stored, before anything is allocated per layer."""
    if spec.num_layers > len(stored):
        raise CheckpointError(
            f"{folder / CONFIG_NAME}: num_hidden_layers is {spec.num_layers}, but the folder holds {len(stored)} "
            "tensors in all: check that config.json and weights belong together"
        )


def match_tensors(
    folder: Path, stored: Mapping[str, StoredTensor], plan: Mapping[str, TensorPlace], spec: ModelSpec
) -> None:
    """Refuse tensors that are not exactly those of the plan."""
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
    hint = (
        "if the head is shared with the embedding, config.json must set tie_word_embeddings to true"
        if missing == [HEAD_NAME]
        else "check that config.json and weights belong together, or fetch the weights again"
    )
    return f"the weights in {folder} lack tensor {listed(missing)}, which {folder / CONFIG_NAME} needs: {hint}"
