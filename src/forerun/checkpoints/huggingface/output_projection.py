"""Checks whether the output projection that a folder holds is the embedding."""

from io import FileIO
from pathlib import Path
from typing import Final

from forerun.checkpoints.huggingface.names import EMBEDDING_NAME, HEAD_NAME, TensorPlace
from forerun.checkpoints.huggingface.plain_names import plain_names
from forerun.checkpoints.huggingface.stored_tensors import catalogue
from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.core.errors import CheckpointError
from forerun.core.model_spec import ModelSpec

NUM_SAMPLES: Final = 64
SAMPLE_BYTES: Final = 256


def has_other_output(folder: Path, spec: ModelSpec) -> bool:
    """Whether a folder's output projection has the embedding's size, but other values.

    Samples over the whole tensor are compared: training changes an output projection everywhere. False without readable
    weights, which are reported when they are read.
    """
    shape = (spec.vocab_size, spec.hidden_size)
    plan = {name: TensorPlace(name=name, shape=shape) for name in (EMBEDDING_NAME, HEAD_NAME)}
    try:
        stored = plain_names(catalogue(folder), spec, plan)
        embedding = stored.get(EMBEDDING_NAME)
        output = stored.get(HEAD_NAME)
        if embedding is None or output is None:
            return False
        if embedding.shape != output.shape or embedding.dtype != output.dtype:
            return False
        return _samples(embedding) != _samples(output)
    except (CheckpointError, OSError):
        return False


def _samples(tensor: StoredTensor) -> list[bytes]:
    step = max(1, tensor.num_bytes // NUM_SAMPLES)
    with FileIO(tensor.path) as file:
        found = []
        for start in range(0, tensor.num_bytes, step):
            file.seek(tensor.offset + start)
            found.append(file.read(min(SAMPLE_BYTES, tensor.num_bytes - start)))
        return found
