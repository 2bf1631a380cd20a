"""A cache of GGUF files, written once for each version of a checkpoint and each weight format."""

from hashlib import sha256
from pathlib import Path
from typing import Final

from forerun.bench.peers.messages import PeerPlan
from forerun.checkpoints.huggingface.config import CONFIG_NAME
from forerun.core.output_file import replacing

VERSION: Final = 2  # of the conversion; a new version makes new files


def cached_gguf(folder: Path, weights: str, cache: Path, vocabulary: Path | None = None) -> Path:
    """The checkpoint as a GGUF file in `cache`, converted if it is not there yet. A GGUF file is returned as it is.

    Args:
        weights: a dtype, int8 or int4, see `write_gguf`.
        vocabulary: a GGUF file to copy the vocabulary from; None for placeholders.

    Raises:
        CheckpointError: the checkpoint cannot be read or converted.
    """
    if folder.is_file():
        return folder
    path = cache / f"{folder.name}-{weights}-{identity(folder, vocabulary)}.gguf"
    if path.exists():
        return path
    from forerun.bench.peers.gguf_file import write_gguf  # imports torch, which a peer needs only for this

    cache.mkdir(parents=True, exist_ok=True)
    with replacing(path) as beside:
        write_gguf(folder, beside, weights=weights, vocabulary=vocabulary)
    return path


def target_file(plan: PeerPlan) -> Path:
    return cached_gguf(Path(plan.target), plan.weights, Path(plan.cache))


def draft_file(plan: PeerPlan) -> Path:
    """The draft as a GGUF file, in the setting `draft_weights`; if the target is a GGUF file, with its vocabulary."""
    assert plan.draft is not None, "the catalogue asks for a draft"
    target, weights = Path(plan.target), plan.settings.get("draft_weights", plan.weights)
    return cached_gguf(Path(plan.draft), weights, Path(plan.cache), target if target.is_file() else None)


def identity(folder: Path, vocabulary: Path | None = None) -> str:
    """A hash of a checkpoint's path and of the sizes and times of its files."""
    files = sorted((folder / CONFIG_NAME, *folder.glob("*.safetensors")))
    stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return sha256(repr((VERSION, str(folder.resolve()), vocabulary, stats)).encode()).hexdigest()[:16]
