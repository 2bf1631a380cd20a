"""The dtype a checkpoint's weights are stored in."""

from collections import Counter
from pathlib import Path
from typing import Final

from forerun.checkpoints.catalogue import catalogue

NAMES: Final = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def read_dtype(folder: Path) -> str:
    """One of float32, bfloat16, float16, float64: that of most of the stored bytes.

    What config.json says is not looked at: some say float32, or nothing, beside weights in bfloat16, and computing in
    float32 then takes twice the memory and time and gains no digit.

    Raises:
        CheckpointError: the weights are missing or damaged.
    """
    num_bytes = Counter[str]()
    for tensor in catalogue(folder).values():
        num_bytes[tensor.dtype] += tensor.num_bytes
    return NAMES[max(num_bytes, key=num_bytes.__getitem__, default="F32")]
