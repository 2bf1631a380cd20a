"""The folder of a run: its settings, and every answer so far; and how reports read it, or single record files."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from forerun import __version__
from forerun.core.drafter_config import drafter_name
from forerun.core.errors import ConfigError, require
from forerun.core.locks import LOCK_NAME, hold
from forerun.core.output_file import remove, write_whole
from forerun_lab.bench.records.answers import Record
from forerun_lab.bench.records.record_files import RecordFile, read_records
from forerun_lab.bench.records.run_plan import RunPlan

NAME: Final = "run.json"
VERSION: Final = 1
IN_FILE_NAMES: Final = ":=,+ "  # characters of labels that files may have in their names
LONGEST: Final = 255  # characters of a file's name
Key = tuple[int | str, int]  # question id, repeat


def file_name(name: str, temperature: float) -> str:
    """The name of the file with a contestant's answers.

    Raises:
        ConfigError: it would be too long.
    """
    found = f"{quote(name, safe=IN_FILE_NAMES)}-temperature-{temperature:g}.jsonl"
    require(len(found) <= LONGEST, f"{name!r} is too long for the name of a file: give the drafter a label=TEXT")
    return found


class RunFolder:
    """The files of a run. Answers are appended as they arrive, so that a killed run can be continued.

    run.json describes the run; a file for each data set, contestant and temperature holds the answers.
    """

    def __init__(self, path: Path, plan: RunPlan, about: Mapping[str, Any]) -> None:
        """Create the folder, or continue the run in it.

        Args:
            about: facts that describe the run but do not define it: machine, command, floor.

        Raises:
            ConfigError: the folder holds another run or other files, or another process writes there.
        """
        self._path = path
        self._files: dict[Path, RecordFile] = {}
        self._lock = hold(path)
        try:
            self._values = self._first_values(plan, about)
            self._write()
        except ConfigError:
            self.close()
            raise

    def _first_values(self, plan: RunPlan, about: Mapping[str, Any]) -> dict[str, Any]:
        """The contents for run.json."""
        for left in self._path.glob(f".{NAME}.*.part"):  # left by a killed process
            remove(left)
        file = self._path / NAME
        if file.exists():
            values = read_run(file)
            plan.require_same(values["plan"], str(file))
            values["continued"] = [*values.get("continued", ()), about.get("machine", {})]
            return values
        if any(found.name != LOCK_NAME for found in self._path.iterdir()):
            raise ConfigError(f"{self._path} is not empty and holds no {NAME}: give a new folder to --out")
        return describe(plan) | dict(about)

    def settings_of(self, name: str, temperature: float) -> dict[str, Any] | None:
        """The settings that were chosen for a contestant; None if none were chosen yet."""
        return self._values["contestants"][name]["settings"].get(f"{temperature:g}")  # type: ignore[no-any-return]

    def choose(self, name: str, temperature: float, settings: Mapping[str, Any], tried: list[Any]) -> None:
        """Save the settings chosen for a contestant, and all that were tried."""
        contestant = self._values["contestants"][name]
        contestant["settings"][f"{temperature:g}"] = dict(settings)
        contestant["tried"][f"{temperature:g}"] = tried
        self._write()

    def skip(self, name: str, temperature: float, reason: str) -> None:
        """Save that a contestant cannot take part at this temperature."""
        contestant = self._values["contestants"][name]
        contestant["skips"][f"{temperature:g}"] = contestant["skipped"] = reason
        self._write()

    def is_skipped(self, name: str, temperature: float) -> bool:
        return f"{temperature:g}" in self._values["contestants"][name]["skips"]

    def find(self, dataset: str, name: str, temperature: float, key: Key) -> Record | None:
        """The answer, if there is one already."""
        return self._file(dataset, name, temperature).records.get(key)

    def append(self, record: Record) -> None:
        self._file(record.dataset, record.contestant, record.temperature).append(record)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files = {}
        self._lock.close()

    def _file(self, dataset: str, name: str, temperature: float) -> RecordFile:
        path = self._path / dataset / file_name(name, temperature)
        if path not in self._files:
            self._files[path] = RecordFile(path)
        return self._files[path]

    def _write(self) -> None:
        """Replace run.json atomically.

        Raises:
            ConfigError: it cannot be written.
        """
        write_whole(self._path / NAME, json.dumps(self._values, indent=2) + "\n")


def describe(plan: RunPlan) -> dict[str, Any]:
    """The run.json of a run that has not begun."""
    return {
        "version": VERSION,
        "forerun": __version__,
        "plan": plan.to_json(),
        "target": plan.config.target,
        "draft": plan.draft,
        "dtype": plan.config.dtype,
        "datasets": list(plan.questions),
        "temperatures": list(plan.temperatures),
        "repeats": plan.repeats,
        "num_prompts": max(map(len, plan.questions.values()), default=0),
        "max_new_tokens": plan.sampling.max_new_tokens,
        "contestants": {
            name: {
                "kind": "drafter" if name in plan.drafters else "peer",
                "drafter": drafter_name(plan.drafters[name].drafter) if name in plan.drafters else None,
                "skipped": None,
                "settings": {},
                "tried": {},
                "skips": {},
            }
            for name in plan.contestants
        },
    }


def left_out(about: Mapping[str, Any]) -> dict[str, str]:
    """The contestants of a run.json that could not take part, and the reasons."""
    entries = about.get("contestants", {}).items()
    return {name: str(entry["skipped"]) for name, entry in entries if entry.get("skipped")}


def read_run(path: Path) -> dict[str, Any]:
    """Read a run.json.

    Raises:
        ConfigError: the file cannot be read, or is not a run.json.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["version"] != VERSION or not isinstance(values["plan"], dict):
            raise ValueError(f"version {values['version']}, this forerun reads {VERSION}")
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}): name a folder that forerun bench run wrote to"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not a run ({error}): name the folder of a run, or a new one") from error
    return values  # type: ignore[no-any-return]


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
