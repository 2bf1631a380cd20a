"""The tensors of a GGUF file as the weights of its model."""

from typing import Final

from forerun.checkpoints.gguf.header import GgufFile
from forerun.checkpoints.gguf.names import gguf_plan, is_ignorable, model_tensors
from forerun.checkpoints.huggingface.names import TensorPlace, by_weight, listed
from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.checkpoints.stored_weights import DENSE, kind_of
from forerun.core.errors import CheckpointError
from forerun.core.json_file import short
from forerun.core.model_spec import ModelSpec

WHOLE: Final = ("I32", "I64")  # allowed for the map of a head's tokens, not for a weight


def match_tensors(file: GgufFile, spec: ModelSpec) -> dict[str, list[StoredTensor]]:
    """The tensors of each weight of the model in the order of their rows, after checking that the file has all of them.

    Raises:
        CheckpointError: the file does not hold exactly the tensors of `spec`; names file and tensor.
    """
    plan = gguf_plan(spec)
    tensors = model_tensors(file, spec)
    for tensor in tensors.values():
        if tensor.name in plan:
            _check(tensor, plan[tensor.name])
        elif not is_ignorable(tensor.name):
            raise CheckpointError(
                f"{tensor.path} holds tensor {short(tensor.name)}, which forerun does not support in a {spec.family} "
                "model: choose another file of the model"
            )
    missing = [name for name in plan if name not in tensors]
    if missing:
        raise CheckpointError(f"{file.path} lacks tensor {listed(missing)}: fetch the file again")
    return by_weight(plan, tensors)


def _check(tensor: StoredTensor, place: TensorPlace) -> None:
    if tensor.shape != place.shape:
        raise CheckpointError(
            f"{tensor.path}: tensor {short(tensor.name)} has shape {list(tensor.shape)}, but must have "
            f"{list(place.shape)} by the file's own metadata: fetch the file again"
        )
    if tensor.dtype in WHOLE:
        raise CheckpointError(
            f"{tensor.path}: tensor {short(tensor.name)} is stored as {tensor.dtype}, whole numbers, but must hold "
            "weights: choose another file of the model"
        )
    if len(tensor.shape) == 1 and kind_of(tensor) != DENSE:
        raise CheckpointError(
            f"{tensor.path}: tensor {short(tensor.name)} is a vector of {tensor.dtype}, but must be F32, F16 or BF16: "
            "choose another file of the model"
        )
