"""The Hugging Face hub."""

from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from forerun.checkpoints.identity import require_sum, sha256_of
from forerun.core.disk_room import is_full, no_room, require_room
from forerun.core.errors import CheckpointError

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo, RepoSibling

# Data only: no pickled weights, no code, and no second copy of the weights in another layout.
HUB_FILES: Final = ("*.json", "*.jinja", "model*.safetensors", "vocabulary_map.safetensors")
# Only some versions of huggingface_hub define these; HTTPError belongs to its HTTP library, which has changed twice.
HUB_ERRORS: Final = (
    "HTTPError",
    "HfHubHTTPError",
    "HFValidationError",
    "EntryNotFoundError",
    "RevisionResolutionError",
)
ROOM_VARIABLE: Final = "HF_HUB_CACHE"  # names the hub's own cache
ANSWERS_S: Final = 3.0  # a reachable hub answers in a tenth of that


def fetch_snapshot(name: str, files: Sequence[str] = HUB_FILES, *, tqdm_class: Any = None) -> Path:
    """The folder of a repository's files in the hub's own cache; missing files are downloaded.

    Downloaded files are checked against the sha256 that the hub gives.

    Args:
        tqdm_class: of the progress bars; None for the hub's own.

    Raises:
        NoRoomError: the disk has too little space for them, or filled up during the download.
        CheckpointError: they cannot be downloaded, or a checksum does not match.
    """
    # Imported here since it takes a quarter of a second and only hub names need it.
    from huggingface_hub import constants, snapshot_download

    info = None
    place = Path(constants.HF_HUB_CACHE)
    with suppress(CheckpointError):  # `snapshot_download` then reports the error or uses the cache
        info = describe(name)
    missing = [] if info is None else _missing(info, files)
    num_bytes = sum(item.size or 0 for item in missing)
    require_room(place, num_bytes, variable=ROOM_VARIABLE)
    try:
        if info is not None and not missing:  # so the hub need not be asked again
            return Path(snapshot_download(name, revision=info.sha, local_files_only=True))
        folder = Path(snapshot_download(name, allow_patterns=list(files), tqdm_class=tqdm_class))
    except hub_errors() as error:
        if is_full(error):
            raise no_room(place, num_bytes, variable=ROOM_VARIABLE) from error
        raise CheckpointError(
            f"there is no folder {name!r}, and {name} could not be fetched from the Hugging Face hub "
            f"({type(error).__name__}: {first_line(error)}): check the name and the network, log in if the model is "
            "gated, or download it elsewhere and give its folder"
        ) from error
    for item in missing:
        _require_sum(folder / item.rfilename, item)
    return folder


def describe(name: str) -> "ModelInfo":
    """The hub's description of a repository's newest files, asked with a short timeout: its client tries for a minute.

    Raises:
        CheckpointError: the hub does not answer in time, or not with the repository.
    """
    from huggingface_hub import HfApi, constants

    if constants.HF_HUB_OFFLINE:
        raise CheckpointError("HF_HUB_OFFLINE is set")
    try:
        return HfApi().model_info(name, timeout=ANSWERS_S, files_metadata=True)
    except hub_errors() as error:
        raise CheckpointError(f"the Hugging Face hub does not give {name}: {first_line(error)}") from error


def _missing(info: "ModelInfo", files: Sequence[str]) -> "list[RepoSibling]":
    """The matching files that are not in the hub's cache."""
    from huggingface_hub import try_to_load_from_cache

    wanted = [item for item in info.siblings or () if any(fnmatch(item.rfilename, pattern) for pattern in files)]
    return [
        item
        for item in wanted
        if not isinstance(try_to_load_from_cache(info.id, item.rfilename, revision=info.sha), str)
    ]


def _require_sum(path: Path, item: "RepoSibling") -> None:
    """Check a file's sha256; a damaged file is removed, so that it is downloaded again. Small files have no sha256."""
    if item.lfs is None:
        return
    try:
        require_sum(path.name, sha256_of(path), item.lfs.sha256)
    except CheckpointError:
        path.resolve().unlink()
        path.unlink(missing_ok=True)
        raise


def list_files(name: str) -> list[str]:
    """Paths of a repository's files; without a network, the paths of those in the hub's own cache.

    Raises:
        CheckpointError: the hub cannot be reached and the cache has no file of the repository.
    """
    from huggingface_hub import HfApi

    try:
        return sorted(HfApi().list_repo_files(name))
    except hub_errors():
        folder = fetch_snapshot(name)
        return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def hub_errors() -> tuple[type[Exception], ...]:
    """The exceptions of the hub's client; RuntimeError comes from its download library (hf-xet)."""
    from huggingface_hub import errors

    return (OSError, RuntimeError, *(getattr(errors, error) for error in HUB_ERRORS if hasattr(errors, error)))


def first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "no details")
