"""The Hugging Face hub."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from forerun.core.errors import CheckpointError

# Data only: no pickled weights, no code, and no second copy of the weights in another layout.
HUB_FILES: Final = ("*.json", "*.jinja", "model*.safetensors", "vocabulary_map.safetensors")
# Defined by some versions of huggingface_hub only; HTTPError is that of its HTTP library, which has changed twice.
HUB_ERRORS: Final = (
    "HTTPError",
    "HfHubHTTPError",
    "HFValidationError",
    "EntryNotFoundError",
    "RevisionResolutionError",
)


def fetch_snapshot(name: str, revision: str | None = None, files: Sequence[str] = HUB_FILES) -> Path:
    """The folder of a repository's files in the hub's own cache, fetched unless they are there.

    Raises:
        CheckpointError: they cannot be fetched.
    """
    # Only a hub name needs the library, and importing it takes a quarter of a second.
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(files)))
    except _hub_errors() as error:
        wanted = name if revision is None else f"{name} at revision {revision}"
        raise CheckpointError(
            f"there is no folder {name!r}, and {wanted} could not be fetched from the Hugging Face hub "
            f"({type(error).__name__}: {_first_line(error)}): check the name and the network, log in if the model is "
            "gated, or download it elsewhere and give its folder"
        ) from error


def list_files(name: str, revision: str | None = None) -> list[str]:
    """Paths of a repository's files; without a network, of those in the hub's own cache.

    Raises:
        CheckpointError: they cannot be listed, and nothing of the repository is in the cache.
    """
    from huggingface_hub import HfApi

    try:
        return sorted(HfApi().list_repo_files(name, revision=revision))
    except _hub_errors():
        folder = fetch_snapshot(name, revision)
        return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _hub_errors() -> tuple[type[Exception], ...]:
    from huggingface_hub import errors

    return (OSError, *(getattr(errors, error) for error in HUB_ERRORS if hasattr(errors, error)))


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "no details")
