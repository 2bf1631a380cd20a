"""The dtype a checkpoint's author stored it in."""

from pathlib import Path
from typing import Final

from forerun.checkpoints.config import CONFIG_NAME
from forerun.checkpoints.json_file import JsonFile

DTYPES: Final = ("float32", "bfloat16", "float16", "float64")


def read_dtype(folder: Path) -> str:
    """One of float32, bfloat16, float16, float64; float32 where config.json does not say.

    Transformers 5 writes `dtype`, earlier versions `torch_dtype`.

    Raises:
        CheckpointError: config.json names another dtype.
    """
    config = JsonFile.read(folder / CONFIG_NAME)
    key = "dtype" if config.has("dtype") else "torch_dtype"
    dtype = config.text(key, "float32").removeprefix("torch.")
    if dtype not in DTYPES:
        raise config.wrong(key, f"one of {', '.join(DTYPES)}: choose a checkpoint stored in one of these")
    return dtype
