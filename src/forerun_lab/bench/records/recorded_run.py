"""Read the answers on disk, from a run's folder or from single record files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from forerun.core.errors import ConfigError
from forerun_lab.bench.records.answers import Record
from forerun_lab.bench.records.record_files import read_records
from forerun_lab.bench.records.run_folder import NAME, read_run


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """The answers of contestants.

    Args:
        about: the run's run.json; empty for single files.
    """

    records: tuple[Record, ...]
    about: Mapping[str, Any] = field(default_factory=dict)


def read_folder(folder: Path) -> RecordedRun:
    """The run in a folder, finished or not.

    Raises:
        ConfigError: it is not a run's folder, or a file in it cannot be read.
    """
    about = read_run(folder / NAME)
    files = sorted(folder.glob("*/*-temperature-*.jsonl"))
    return RecordedRun(records=tuple(record for file in files for record in read_records(file)), about=about)


def read_files(files: Sequence[Path]) -> RecordedRun:
    """Read record files, each of one contestant.

    Raises:
        ConfigError: a file cannot be read, or holds no record.
    """
    records: list[Record] = []
    for file in files:
        records += _read_beside(records, file)
    return RecordedRun(records=tuple(records))


def with_baseline(run: RecordedRun, file: Path) -> tuple[RecordedRun, str]:
    """Add a file's contestant to the run; returns the run and the contestant's name."""
    baseline = _read_beside(run.records, file)
    return RecordedRun(records=(*run.records, *baseline), about=run.about), baseline[0].contestant


def _read_beside(others: Sequence[Record], file: Path) -> list[Record]:
    """The file's records, with the contestant renamed if another file has the same name."""
    found = read_records(file)
    if not found:
        raise ConfigError(f"{file} holds no record: name a file that forerun bench run wrote")
    taken = {record.contestant for record in others}
    return [
        replace(record, contestant=f"{record.contestant} ({file.parent.name}/{file.stem})")
        if record.contestant in taken
        else record
        for record in found
    ]
