"""Finds the models with a short name that are on this machine, and names one that gains more from guesses."""

import logging
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Final

from forerun.checkpoints.identity import sha256_of
from forerun.checkpoints.short_names.catalogue import HubFolder, ModelOrigin, NamedModel, WheelFile, listed_models
from forerun.core.disk_room import gigabytes
from forerun.core.errors import ConfigError
from forerun.core.output_file import write_whole
from forerun.core.paths import cache_folder

logger = logging.getLogger(__name__)
FETCHED_PER_S: Final = 10e6  # bytes: an example, as the speed of a connection is not known before a download


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel:
    """A model on this machine.

    Args:
        path: the folder or file to open.
        num_bytes: its size on disk.
    """

    path: Path
    origin: ModelOrigin
    num_bytes: int


def find_local(model: NamedModel) -> LocalModel | None:
    """The local copy from the model's first origin that is complete on this machine, or None."""
    return next((found for origin in model.origins if (found := find_origin(model, origin)) is not None), None)


def find_origin(model: NamedModel, origin: ModelOrigin) -> LocalModel | None:
    """The local copy from this origin, or None if it is missing or incomplete."""
    match origin:
        case HubFolder():
            return _in_hub_cache(origin)
        case WheelFile():
            path = model_folder(model) / origin.file_name
            if not path.is_file() or path.stat().st_size != origin.num_bytes or not has_sum(path, origin.sha256):
                return None
            return LocalModel(path=path, origin=origin, num_bytes=origin.num_bytes)


def has_sum(path: Path, expected: str) -> bool:
    """Whether a file has this sha256. The result is cached in a file next to it while size and mtime are unchanged."""
    marker = path.with_name(f".{path.name}.sha256")
    stat = path.stat()
    remembered = f"{expected} {stat.st_size} {int(stat.st_mtime)}\n"  # container layers store whole seconds only
    with suppress(OSError, ValueError):
        if marker.read_text(encoding="utf-8") == remembered:
            return True
    found = sha256_of(path)
    if found != expected:
        logger.warning("%s is ignored: its sha256 is %s, but must be %s", path, found, expected)
        return False
    with suppress(ConfigError):  # if it cannot be written, every start computes the sum again
        write_whole(marker, remembered)
    return True


def model_folder(model: NamedModel) -> Path:
    """The folder where forerun stores its own files of a model."""
    return cache_folder() / "models" / model.name.replace(":", "-")  # Windows allows no colon in a file name


def hub_place(repository: str) -> Path:
    """A repository's folder in the hub's own cache."""
    from huggingface_hub.constants import HF_HUB_CACHE  # slow to import

    return Path(HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}"


def _in_hub_cache(origin: HubFolder) -> LocalModel | None:
    """Look in the cache by its folder layout: the library's own function imports its HTTP client, which is slow."""
    place = hub_place(origin.repository)
    main = place / "refs" / "main"
    if not main.is_file():
        return None
    folder = place / "snapshots" / main.read_text(encoding="utf-8").strip()
    paths = [folder / name for name in origin.files]
    if not all(path.is_file() for path in paths):
        return None
    num_bytes = sum(path.stat().st_size for path in paths)
    return LocalModel(path=paths[0] if len(paths) == 1 else folder, origin=origin, num_bytes=num_bytes)


def model_that_gains(num_parameters: int) -> str:
    """A sentence that names the smallest model with a measured gain; empty if none is larger than `num_parameters`."""
    larger = [model for model in listed_models() if model.gain is not None and model.num_parameters > num_parameters]
    if not larger:
        return ""
    model = min(larger, key=lambda model: model.num_parameters)
    measured = f"With {model.name} guesses made {model.gain} on all machines where this was measured"
    return f"{measured} ({_download(model)})."


def _download(model: NamedModel) -> str:
    if find_local(model) is not None:
        return "it is on this machine"
    minutes = ceil(model.num_bytes / FETCHED_PER_S / 60.0)
    time = f"{minutes} minute{'s' if minutes > 1 else ''} at {FETCHED_PER_S / 1e6:.0f} MB/s"
    return f"`forerun pull {model.name}` fetches {gigabytes(model.num_bytes)}: about {time}"
