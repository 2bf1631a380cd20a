"""A folder that gets its name once it is complete, and that goes on where an earlier run was cut off."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from forerun.core.errors import ConfigError
from forerun.core.locks import hold
from forerun.core.output_file import synchronise, write_whole

JOB_NAME: Final = "job.json"  # what an unfinished folder is made of
SPARE_BYTES: Final = 2**24  # for headers and what the file system keeps for itself


@contextmanager
def resumable_folder(out: Path, job: Mapping[str, object] | None) -> Iterator[Path]:
    """An unfinished folder beside `out`, which becomes `out` where nothing is raised within.

    It holds what an earlier run of the same job finished; of another job everything is removed, and of the same one
    what has a name that begins with a dot, as files have that are being written. One process at a time may be within.

    Args:
        job: what the folder's contents depend on, as values of JSON. None: it begins empty, and nothing stays of it
            where something is raised.

    Raises:
        ConfigError: `out` is there already, another process makes it, or it cannot be written.
    """
    unfinished = out.with_name(f".{out.name}.part")
    refuse_existing(out)
    lock = hold(unfinished)
    try:
        if out.exists():  # another process has just finished it
            with suppress(OSError):
                unfinished.rmdir()
            refuse_existing(out)
        begin(unfinished, job)
        yield unfinished
        (unfinished / JOB_NAME).unlink()
        for path in (*unfinished.iterdir(), unfinished):
            synchronise(path)
        unfinished.rename(out)
        synchronise(out.parent)
    except OSError as error:
        kept = "" if job is None else f". What is finished stays in {unfinished}: the same command goes on from there"
        reason = error.strerror or error
        raise ConfigError(f"{out} cannot be written ({reason}): make room, or name another folder{kept}") from error
    finally:
        if job is None:
            shutil.rmtree(unfinished, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def refuse_existing(out: Path) -> None:
    if out.exists():
        raise ConfigError(f"{out} is there already: name a folder that is not")


def begin(unfinished: Path, job: Mapping[str, object] | None) -> None:
    """Leave in the folder what belongs to this job and is finished."""
    text, is_same = json.dumps(job, sort_keys=True), False
    with suppress(OSError, UnicodeDecodeError):
        is_same = job is not None and (unfinished / JOB_NAME).read_text(encoding="utf-8") == text
    for path in unfinished.iterdir():
        if is_same and not path.name.startswith("."):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    if not is_same:
        write_whole(unfinished / JOB_NAME, text)


def require_room(folder: Path, num_bytes: int) -> None:
    """Refuse to begin what will not fit.

    Raises:
        ConfigError: the folder's disk has less room than that.
    """
    free = shutil.disk_usage(folder).free
    if free < num_bytes + SPARE_BYTES:
        raise ConfigError(
            f"{folder} has room for {free / 1e9:.2f} GB and {(num_bytes + SPARE_BYTES) / 1e9:.2f} GB are needed: make "
            "room, or name another folder"
        )
