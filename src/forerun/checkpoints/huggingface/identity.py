"""The identity of the model in a folder, as a short text."""

from pathlib import Path

from forerun.checkpoints.huggingface.config import read_model_spec
from forerun.checkpoints.huggingface.stored_tensors import catalogue
from forerun.checkpoints.identity import identity_of


def model_identity(folder: Path) -> str:
    """See `identity_of`.

    Raises:
        CheckpointError: the checkpoint is absent, damaged or not supported.
    """
    return identity_of(read_model_spec(folder), catalogue(folder))
