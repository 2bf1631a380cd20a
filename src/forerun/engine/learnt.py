"""Measurements of a model on this machine, saved for the next start of an engine.

There is one file for each model, machine and version of forerun:

    {"version": 2, "about": {"model": identity, "cpu": ..., "threads": 2, ...}, "context_s": 1.2e-7,
     "paces": [[[1, 0.0053], [8, 0.0061]]], "speeds": {"greedy": {"recycling": 1.31}},
     "saved_s": {"recycling": 0.02}}

The drafter's learned state is saved there too, in its own format. Wrong contents can only cost speed; they never
change a token.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from forerun.core.errors import CheckpointError, ConfigError, require
from forerun.core.json_file import MAX_NUMBER, decode, read_bounded, short
from forerun.core.output_file import UnwritableError, remove_leftovers, write_whole
from forerun.core.pace import Pace
from forerun.decoding.drafters import Drafters
from forerun.engine.speedup import context_cost
from forerun.model.pass_times import measure_pace
from forerun.model.runner import Runner
from forerun.speculation.referee.records import TemperatureClass

logger = logging.getLogger(__name__)

About: TypeAlias = Mapping[str, str | int]
VERSION: Final = 2
OLD_VERSION: Final = 1  # its speeds were measured with other rounds, so the file is ignored
MAX_BYTES: Final = 1 << 16  # the file holds a few dozen numbers
MAX_STATE_BYTES: Final = 1 << 26  # over a hundred bytes for each token of the largest vocabularies
DIGEST_BYTES: Final = 8
ONE_ROW: Final = (1,)  # the pass that every start measures
DRIFT: Final = 1.5  # a pass that is faster or slower by this factor is measured again; a busy machine varies by less
MAX_SPEED: Final = 1e3  # tokens in the time of a plain round; trees have fewer levels


@dataclass(slots=True, kw_only=True)
class Learnt:
    """Pass times, and the drafters' speeds in tokens per time of a plain round.

    Args:
        paces: of the target, by the numbers of rows that were measured.
        context_s: additional seconds of a pass per token of context; None: not measured.
        saved_s: seconds left from earlier texts for which each drafter may be measured.
    """

    paces: dict[tuple[int, ...], Pace] = field(default_factory=dict)
    context_s: float | None = None
    speeds: dict[TemperatureClass, dict[str, float]] = field(default_factory=dict)
    saved_s: dict[str, float] = field(default_factory=dict)


class LearntFile:
    """The file for one model on one machine, and its contents.

    Args:
        folder: the folder of these files; None: nothing is saved.
        about: the facts that the contents depend on. A file with other facts is ignored.
    """

    def __init__(self, folder: str | None, about: About) -> None:
        digest = blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=DIGEST_BYTES).hexdigest()
        self._path = None if folder is None else Path(folder) / f"{digest}.json"
        self._state_path = None if self._path is None else self._path.with_suffix(".drafter")
        self._about = dict(about)
        self.learnt = Learnt() if self._path is None else read_learnt(self._path, self._about)

    def measure(self, target: Runner, widths: Sequence[int], *, budget_s: float = 0.3) -> Pace:
        """Seconds of a pass of the target by its rows, saved or measured now. Empties the cache."""
        wanted = set(widths)
        for known in self.learnt.paces.values():
            steps = tuple(step for step in known.steps if step[0] in wanted)
            if len(steps) == len(wanted):
                return Pace(steps=steps)
        measured = self.learnt.paces[tuple(widths)] = measure_pace(target, widths, budget_s=budget_s)
        return measured

    def pace(self, num_rows: int) -> Pace | None:
        """The most detailed saved pass times that include `num_rows` rows; None if there are none."""
        known = [pace for pace in self.learnt.paces.values() if pace.steps[-1][0] >= num_rows]
        return max(known, key=lambda pace: len(pace.steps), default=None)

    def context_cost(self, target: Runner) -> float:
        """Additional seconds of a pass per token of context, saved or measured now. Empties the cache."""
        if self.learnt.context_s is None:
            self.learnt.context_s = context_cost(target)
        return self.learnt.context_s

    def forget_if_outdated(self, target: Runner) -> None:
        """Drop the saved pass times if a pass now takes a different time. Empties the cache."""
        if self._path is None:
            return
        known = self.learnt.paces.get(ONE_ROW)
        newest = measure_pace(target, ONE_ROW, budget_s=0.0)
        if known is not None and 1.0 / DRIFT < newest.step_s(1) / known.step_s(1) < DRIFT:
            return
        self.learnt.paces = {ONE_ROW: newest}
        self.learnt.context_s = None

    def restore(self, drafters: Drafters) -> None:
        """Restore the drafter's learned state; a damaged file is ignored, with a warning."""
        path = self._state_path
        try:
            if path is None or not path.exists():
                return
            if not drafters.restore(read_bounded(path, MAX_STATE_BYTES)):
                logger.warning("%s is ignored: it is damaged, or belongs to another model", path)
        except (OSError, CheckpointError) as error:
            logger.warning("the saved state of the drafter is ignored: %s", error)

    def keep(self, drafters: Drafters) -> None:
        """Save everything atomically; if that fails, log a warning, and the next start measures again."""
        if self._path is None or self._state_path is None:
            return
        speeds = drafters.referee.speeds()
        self.learnt.speeds.update({kind: dict(found) for kind, found in speeds.items()})
        self.learnt.saved_s = dict(drafters.referee.saved_s)
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
            if state := drafters.state():
                write_whole(self._state_path, state, is_private=True)
            remove_leftovers(self._path.parent)
        except UnwritableError as error:
            logger.warning(
                "the measurements of this engine are not saved, because %s: make that possible, or name another folder "
                "for all such files in the variable FORERUN_CACHE",
                error.what,
            )


class _Contents(msgspec.Struct, kw_only=True):
    """The contents of a file, which is untrusted input."""

    version: Literal[1, 2]
    about: dict[str, str | int]
    paces: list[tuple[tuple[int, float], ...]]
    context_s: Annotated[float, Meta(ge=0.0, le=MAX_NUMBER)] | None = None
    speeds: dict[TemperatureClass, dict[str, Annotated[float, Meta(gt=0.0, le=MAX_SPEED)]]] = {}
    saved_s: dict[str, Annotated[float, Meta(ge=0.0, le=MAX_NUMBER)]] = {}


def read_learnt(path: Path, about: About) -> Learnt:
    """The contents of a file; empty if there is none, or if it cannot be used, which is logged."""
    try:
        if not path.exists():
            return Learnt()
        file = decode(read_bounded(path, MAX_BYTES), _Contents)
        if file.version == OLD_VERSION:
            return Learnt()
        require(file.about == about, f"it is about {short(file.about)}, not about this model on this machine")
        paces = [Pace(steps=steps) for steps in file.paces]
    except (OSError, ValueError, CheckpointError, ConfigError) as error:
        logger.warning("the measurements of an earlier start in %s are ignored, and made again: %s", path, error)
        return Learnt()
    by_rows = {tuple(rows for rows, _ in pace.steps): pace for pace in paces}
    return Learnt(paces=by_rows, context_s=file.context_s, speeds=file.speeds, saved_s=file.saved_s)
