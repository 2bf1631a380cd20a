"""Answers on disk to records in memory: a run's folder, or single files of ours and of others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from forerun.bench.answers import Record
from forerun.bench.foreign_records import read_any_records
from forerun.bench.record_files import read_records
from forerun.bench.run_folder import NAME, read_run
from forerun.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """What contestants answered.

    Args:
        about: the run's run.json; empty for single files.
        notes: what a reader of the numbers must know of where they come from.
    """

    records: tuple[Record, ...]
    about: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_folder(folder: Path) -> RecordedRun:
    """The run in a folder, finished or not.

    Raises:
        ConfigError: it is no run's folder, or a file in it cannot be read.
    """
    about = read_run(folder / NAME)
    files = sorted(folder.glob("*/*-temperature-*.jsonl"))
    return RecordedRun(records=tuple(record for file in files for record in read_records(file)), about=about)


def read_files(files: Sequence[Path]) -> RecordedRun:
    """Record files of ours, or of EAGLE, Spec-Bench or SWIFT; each is one contestant.

    Raises:
        ConfigError: a file cannot be read as any of these.
    """
    records: list[Record] = []
    notes: list[str] = []
    for file in files:
        found = read_any_records(file)
        names = {record.contestant for record in records}
        records += _told_apart(found.records, names, file)
        notes += [f"{file.name}: {note}" for note in found.notes]
    return RecordedRun(records=tuple(records), notes=tuple(notes))


def with_baseline(run: RecordedRun, file: Path) -> tuple[RecordedRun, str]:
    """The run with a file's contestant beside it, and that one's name."""
    found = read_files([file])
    if not found.records:
        raise ConfigError(f"{file} holds no answers, and a baseline needs some: name another file")
    others = _told_apart(found.records, {record.contestant for record in run.records}, file)
    records = (*run.records, *_in_the_same_data_set(others, run.records))
    return RecordedRun(records=records, about=run.about, notes=(*run.notes, *found.notes)), others[0].contestant


def _told_apart(records: Sequence[Record], taken: set[str], file: Path) -> list[Record]:
    """The records under a contestant's name that no other file has."""
    return [
        replace(record, contestant=f"{record.contestant} ({file.parent.name}/{file.stem})")
        if record.contestant in taken
        else record
        for record in records
    ]


def _in_the_same_data_set(baseline: Sequence[Record], others: Sequence[Record]) -> Sequence[Record]:
    """The baseline's records, under the others' data set where both have only one and the names differ.

    Files of others do not say which data set they are about; their folder's name is a guess.
    """
    ours, theirs = {record.dataset for record in others}, {record.dataset for record in baseline}
    if len(ours) != 1 or len(theirs) != 1:
        return baseline
    return [replace(record, dataset=next(iter(ours))) for record in baseline]
