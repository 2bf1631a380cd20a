"""The place where a backend may save the weights that it packed."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptWeights:
    """A place for the packed weights of one model.

    Args:
        folder: the folder with the packed weights of all models; created if it is missing.
        name: name of the model, for messages.
        about: the facts besides the kernels that the packed bytes depend on.
        num_bytes: size of the weights as stored in the checkpoint.
        is_whole: no sublayer is missing, so the packed weights can be used for every use of the model.
    """

    folder: Path
    name: str
    about: str
    num_bytes: int
    is_whole: bool
