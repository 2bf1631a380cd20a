"""Where a backend may keep the weights that it packed."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptWeights:
    """A place for the packed weights of one model.

    Args:
        folder: with those of other models; made where it is missing.
        name: of the model, for the user to read.
        about: what the packed bytes depend on, beside the kernels.
        num_bytes: of the weights as they are stored.
        is_whole: the model lacks no sublayer, so that what is packed serves every use of it.
    """

    folder: Path
    name: str
    about: str
    num_bytes: int
    is_whole: bool
