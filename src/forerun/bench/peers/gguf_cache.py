"""GGUF files, written once for each state of a checkpoint and kind of weights."""

import os
from hashlib import sha256
from pathlib import Path
from typing import Final

from forerun.checkpoints.huggingface.config import CONFIG_NAME

VERSION: Final = 2  # of the conversion; another one makes new files


def cached_gguf(folder: Path, weights: str, cache: Path) -> Path:
    """The checkpoint as a GGUF file in `cache`, written there unless it is there; one that is such a file is itself.

    Args:
        weights: a dtype, int8 or int4, see `write_gguf`.

    Raises:
        CheckpointError: the checkpoint cannot be read or converted.
    """
    if folder.is_file():
        return folder
    path = cache / f"{folder.name}-{weights}-{identity(folder)}.gguf"
    if path.exists():
        return path
    from forerun.bench.peers.gguf_file import write_gguf  # brings torch along, which a peer needs for this only

    cache.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}.part")
    try:
        write_gguf(folder, beside, weights=weights)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return path


def identity(folder: Path) -> str:
    """A name for the state of a checkpoint: where it lies, and size and time of its files."""
    files = sorted((folder / CONFIG_NAME, *folder.glob("*.safetensors")))
    stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return sha256(repr((VERSION, str(folder.resolve()), stats)).encode()).hexdigest()[:16]
