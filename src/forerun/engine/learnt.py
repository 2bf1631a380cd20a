"""What an engine finds out about a model on this machine, kept for its next start.

A file of its own for each model, machine and version of forerun:

    {"version": 2, "about": {"model": identity, "cpu": ..., "threads": 2, ...}, "context_s": 1.2e-7,
     "paces": [[[1, 0.0053], [8, 0.0061]]], "speeds": {"greedy": {"recycling": 1.31}},
     "saved_s": {"recycling": 0.02}}

Beside it lies what the drafter has learnt, in its own form. All this can cost speed, never a token: nothing
in it is believed that would matter for the text.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Final, TypeAlias

from forerun.core.errors import CheckpointError, ConfigError
from forerun.core.json_file import JsonFile, read_bounded
from forerun.core.output_file import write_whole
from forerun.core.pace import Pace
from forerun.drafting.automatic import AutomaticDrafter
from forerun.drafting.drafter import Drafter
from forerun.engine.speedup import context_cost
from forerun.model.measure import measure_pace
from forerun.model.runner import Runner
from forerun.speculation.economy.chances import TEMPERATURE_CLASSES, TemperatureClass

logger = logging.getLogger(__name__)

About: TypeAlias = Mapping[str, str | int]
VERSION: Final = 2
OLD_VERSION: Final = 1  # its speeds were of other rounds, so that nothing of it is used
MAX_BYTES: Final = 1 << 16  # some dozen numbers are in it
MAX_STATE_BYTES: Final = 1 << 26  # a hundred bytes for each of the tokens of any vocabulary so far
DIGEST_BYTES: Final = 8
ONE_ROW: Final = (1,)  # the pass that every start measures
DRIFT: Final = 1.5  # times faster or slower than it was at which a pass is measured anew: a busy machine varies by less
MAX_SPEED: Final = 1e3  # tokens in the time of a plain round: no tree has so many levels


@dataclass(slots=True, kw_only=True)
class Learnt:
    """Pass times, and the drafters' speeds in tokens in the time of a plain round.

    Args:
        paces: of the target, by the numbers of rows that were measured.
        context_s: added seconds of a pass per token of context; None: not measured.
        saved_s: seconds that each drafter may be watched for, left from earlier texts.
    """

    paces: dict[tuple[int, ...], Pace] = field(default_factory=dict)
    context_s: float | None = None
    speeds: dict[TemperatureClass, dict[str, float]] = field(default_factory=dict)
    saved_s: dict[str, float] = field(default_factory=dict)


class LearntFile:
    """The file for one model on one machine, and what is in it.

    Args:
        folder: where such files are; None: nothing is kept.
        about: what the contents depend on. A file about anything else is left aside.
    """

    def __init__(self, folder: str | None, about: About) -> None:
        digest = blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=DIGEST_BYTES).hexdigest()
        self._path = None if folder is None else Path(folder) / f"{digest}.json"
        self._state_path = None if self._path is None else self._path.with_suffix(".drafter")
        self._about = dict(about)
        self.learnt = Learnt() if self._path is None else read_learnt(self._path, self._about)

    def measure(self, target: Runner, widths: Sequence[int], *, budget_s: float = 0.3) -> Pace:
        """Seconds of a pass of the target by its rows: as they were, or measured now. Empties the cache."""
        wanted = set(widths)
        for known in self.learnt.paces.values():
            steps = tuple(step for step in known.steps if step[0] in wanted)
            if len(steps) == len(wanted):
                return Pace(steps=steps)
        measured = self.learnt.paces[tuple(widths)] = measure_pace(target, widths, budget_s=budget_s)
        return measured

    def pace(self, num_rows: int) -> Pace | None:
        """Seconds of passes of up to so many rows, as finely as they were measured; None: they were not."""
        known = [pace for pace in self.learnt.paces.values() if pace.steps[-1][0] >= num_rows]
        return max(known, key=lambda pace: len(pace.steps), default=None)

    def context_cost(self, target: Runner) -> float:
        """Added seconds of a pass per token of context: as it was, or measured now. Empties the cache."""
        if self.learnt.context_s is None:
            self.learnt.context_s = context_cost(target)
        return self.learnt.context_s

    def forget_if_outdated(self, target: Runner) -> None:
        """Drop the pass times where a pass takes another time than it did. Empties the cache."""
        if self._path is None:
            return
        known, newest = self.learnt.paces.get(ONE_ROW), measure_pace(target, ONE_ROW, budget_s=0.0)
        if known is not None and 1.0 / DRIFT < newest.step_s(1) / known.step_s(1) < DRIFT:
            return
        self.learnt.paces = {ONE_ROW: newest}
        self.learnt.context_s = None

    def restore(self, drafter: Drafter) -> None:
        """Give the drafter back what it had learnt; what is damaged is left aside, and said."""
        path = self._state_path
        try:
            if path is None or not path.exists():
                return
            if not drafter.restore(read_bounded(path, MAX_STATE_BYTES)):
                logger.warning("%s is damaged, or another model's, and left aside", path)
        except (OSError, CheckpointError) as error:
            logger.warning("what the drafter had learnt is left aside: %s", error)

    def keep(self, drafter: Drafter) -> None:
        """Write what is known by now, atomically; a place that takes no file is said, and costs the next start."""
        if self._path is None or self._state_path is None:
            return
        if isinstance(drafter, AutomaticDrafter):
            speeds = drafter.chooser.speeds()
            self.learnt.speeds.update({kind: dict(found) for kind, found in speeds.items()})
            self.learnt.saved_s = dict(drafter.chooser.saved_s)
        values = {
            "version": VERSION,
            "about": self._about,
            "context_s": self.learnt.context_s,
            "paces": [pace.steps for pace in self.learnt.paces.values()],
            "speeds": self.learnt.speeds,
            "saved_s": self.learnt.saved_s,
        }
        try:
            write_whole(self._path, json.dumps(values) + "\n", makes_folder=True, is_private=True)
            if state := drafter.state():
                write_whole(self._state_path, state, is_private=True)
        except ConfigError as error:
            logger.warning("what was learnt is not kept: %s", error)


def read_learnt(path: Path, about: About) -> Learnt:
    """What a file says; nothing where there is none, or none that can be used, which is said."""
    try:
        return _parse(JsonFile.read(path, max_bytes=MAX_BYTES), about) if path.exists() else Learnt()
    except (OSError, CheckpointError, ConfigError) as error:
        logger.warning("what was learnt at an earlier start is left aside, and found out anew: %s", error)
        return Learnt()


def _parse(file: JsonFile, about: About) -> Learnt:
    """The contents of a foreign file, every value checked."""
    version = file.values.get("version")
    if type(version) is int and version == OLD_VERSION:
        return Learnt()
    file.integer("version", least=VERSION, most=VERSION)
    if file.values.get("about") != about:
        raise file.wrong("about", "this model on this machine")
    context_s = file.number("context_s", least=0.0) if file.has("context_s") else None
    speeds = {kind: _parse_speeds(file.nested("speeds").nested(kind)) for kind in TEMPERATURE_CLASSES}
    saved = file.nested("saved_s")
    saved_s = {name: saved.number(name, least=0.0) for name in saved.values}
    return Learnt(paces=_parse_paces(file), context_s=context_s, speeds=speeds, saved_s=saved_s)


def _parse_speeds(file: JsonFile) -> dict[str, float]:
    found = {name: file.number(name) for name in file.values}
    for name, speed in found.items():
        if speed > MAX_SPEED:
            raise file.wrong(name, f"at most {MAX_SPEED:g} tokens in the time of a plain round")
    return found


def _parse_paces(file: JsonFile) -> dict[tuple[int, ...], Pace]:
    lists = file.values.get("paces")
    paces = [_parse_pace(file, steps) for steps in lists] if isinstance(lists, list) else [_parse_pace(file, lists)]
    return {tuple(rows for rows, _ in pace.steps): pace for pace in paces}


def _parse_pace(file: JsonFile, steps: object) -> Pace:
    if not isinstance(steps, list):
        raise file.wrong("paces", "a list of lists")
    return Pace(steps=tuple(_parse_step(file, step) for step in steps))


def _parse_step(file: JsonFile, step: object) -> tuple[int, float]:
    match step:
        case [int(rows), float(seconds)] if type(rows) is int:
            return rows, seconds
        case _:
            raise file.wrong("paces", "lists of a number of rows and its seconds")
