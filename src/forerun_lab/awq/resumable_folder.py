"""A folder that is renamed once it is complete, and that an interrupted run can resume."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from forerun.core.disk_room import free_bytes, gigabytes
from forerun.core.errors import ConfigError
from forerun.core.locks import LOCK_NAME, hold
from forerun.core.output_file import synchronise, write_whole

JOB_NAME: Final = "job.json"  # the job of an unfinished folder
SPARE_BYTES: Final = 2**24  # for headers and the file system's own data


@contextmanager
def resumable_folder(out: Path, job: Mapping[str, object] | None) -> Iterator[Path]:
    """An unfinished folder next to `out`, which is renamed to `out` if the block raises nothing.

    It keeps the finished files of an earlier run of the same job. Files of another job are removed, and so are files of
    the same job that were not finished, whose names begin with a dot. Only one process at a time may use it.

    Args:
        job: the facts that the folder's contents depend on, as JSON values. None: the folder begins empty, and is
            removed if the block raises.

    Raises:
        ConfigError: `out` exists already, another process writes it, or it cannot be written.
    """
    unfinished = out.with_name(f".{out.name}.part")
    refuse_existing(out)
    lock = hold(unfinished, out.with_name(f".{out.name}{LOCK_NAME}"))  # beside it, since the folder is renamed
    try:
        if out.exists():  # another process has just finished it
            with suppress(OSError):
                unfinished.rmdir()
            refuse_existing(out)
        clean(unfinished, job)
        yield unfinished
        (unfinished / JOB_NAME).unlink()
        for path in (*unfinished.iterdir(), unfinished):
            synchronise(path)
        unfinished.rename(out)
        synchronise(out.parent)
    except OSError as error:
        kept = "" if job is None else f". Finished files stay in {unfinished}, and the same command continues there"
        reason = error.strerror or error
        raise ConfigError(f"{out} cannot be written ({reason}): make room, or name another folder{kept}") from error
    finally:
        if job is None:
            shutil.rmtree(unfinished, ignore_errors=True)
        lock.close()


def refuse_existing(out: Path) -> None:
    if out.exists():
        raise ConfigError(f"{out} exists already: name a folder that does not exist")


def clean(unfinished: Path, job: Mapping[str, object] | None) -> None:
    """Remove everything from the folder except finished files of this job."""
    text = json.dumps(job, sort_keys=True)
    is_same = False
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
    """Refuse a disk with too little space.

    Raises:
        ConfigError: the folder's disk has less than `num_bytes` free.
    """
    free = free_bytes(folder)
    needed = num_bytes + SPARE_BYTES
    if free < needed:
        raise ConfigError(
            f"{folder} has {gigabytes(free)} free, but {gigabytes(needed)} are needed: free some space, or name "
            "another folder"
        )
