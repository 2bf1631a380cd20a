"""The time of a forward pass on a machine, in seconds, by model, number of units and rows."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Final, Literal, get_args

from forerun.core.errors import ConfigError
from forerun.core.output_file import write_whole
from forerun.core.pace import Pace

Source = Literal["measured", "paced", "stated", "roofline"]
VERSION = 1
OVERHEADS: Final = (
    "serial_overhead_s",
    "parallel_overhead_s",
    "expansion_overhead_s",
    "worker_expansion_overhead_s",
)
KEYS: Final = frozenset(("version", "source", "unit", "target", "draft", "about", *OVERHEADS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The step times of a pair of models.

    Args:
        source: origin of the numbers; only "measured" ones describe a real machine.
        unit: the resource divided between target and draft: "GPU" or "core".
        target: maps the number of units to the time of a target pass by its rows.
        draft: the same for a draft pass; empty without a draft.
        serial_overhead_s: a serial round's time beyond its passes.
        parallel_overhead_s: a parallel round's time beyond the longer side.
        expansion_overhead_s: a serial drafter's time per expansion beyond its draft pass.
        worker_expansion_overhead_s: the same in a separate process, where caches are colder and the tree is larger.
        about: free text by key: models, dtype, machine, versions.
    """

    source: Source
    unit: str
    target: Mapping[int, Pace]
    draft: Mapping[int, Pace] = field(default_factory=dict)
    serial_overhead_s: float = 0.0
    parallel_overhead_s: float = 0.0
    expansion_overhead_s: float = 0.0
    worker_expansion_overhead_s: float = 0.0
    about: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.target:
            raise ConfigError("a profile has no times of the target: give them for at least one number of units")
        few = min((*self.target, *self.draft))
        if few < 1:
            raise ConfigError(f"a profile of {few} {self.unit}s: at least 1 is needed")
        for name in OVERHEADS:
            seconds = getattr(self, name)
            if not 0.0 <= seconds < inf:
                raise ConfigError(f"{name} {seconds}, which must be finite and at least 0")

    def write(self, path: Path) -> None:
        """Write the profile atomically.

        Raises:
            ConfigError: the file cannot be written.
        """
        values = {
            "version": VERSION,
            "source": self.source,
            "unit": self.unit,
            "target": {str(units): list(pace.steps) for units, pace in self.target.items()},
            "draft": {str(units): list(pace.steps) for units, pace in self.draft.items()},
            **{name: getattr(self, name) for name in OVERHEADS},
            "about": dict(self.about),
        }
        write_whole(path, json.dumps(values, indent=2) + "\n", makes_folder=True)

    @classmethod
    def read(cls, path: Path) -> "Profile":
        """Read the profile in a file.

        Raises:
            ConfigError: the file does not exist, or is not a profile.
        """
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            if values["version"] != VERSION:
                raise ConfigError(f"version {values['version']}, this forerun reads {VERSION}")
            if set(values) != KEYS:
                raise ConfigError(f"missing or unknown: {', '.join(sorted(set(values) ^ KEYS))}")
            if values["source"] not in get_args(Source):
                raise ConfigError(f"source {values['source']!r}")
            return cls(
                source=values["source"],
                unit=str(values["unit"]),
                target=read_paces(values["target"]),
                draft=read_paces(values["draft"]),
                about={str(key): str(value) for key, value in values["about"].items()},
                **{name: float(values[name]) for name in OVERHEADS},
            )
        except OSError as error:
            raise ConfigError(
                f"the profile {path} cannot be read ({error}): make one with forerun plan --calibrate"
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, ConfigError) as error:
            raise ConfigError(
                f"{path} is not a profile ({type(error).__name__}: {error}): make one with forerun plan --calibrate"
            ) from error


def read_paces(values: Mapping[str, list[tuple[int, float]]]) -> dict[int, Pace]:
    """Paces by number of units, from JSON."""
    return {
        int(units): Pace(steps=tuple((int(rows), float(seconds)) for rows, seconds in steps))
        for units, steps in values.items()
    }
