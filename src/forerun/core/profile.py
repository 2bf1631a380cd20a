"""What a forward pass costs on a machine: seconds by model, units given to it and rows."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from forerun.core.errors import ConfigError
from forerun.core.pace import Pace

Source = Literal["measured", "paced", "stated", "roofline"]
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The step times of a pair of models.

    Args:
        source: where the numbers come from; only "measured" ones are facts about a machine.
        unit: what is divided between target and draft: "GPU" or "core".
        target: number of units to the time of a target pass by its rows.
        draft: the same of a draft pass; empty without a draft.
        serial_overhead_s: a serial round's time beyond its passes.
        parallel_overhead_s: a parallel round's time beyond the longer side.
        expansion_overhead_s: an expansion's time beyond its draft pass.
        about: free text by key: models, dtype, machine, versions.
    """

    source: Source
    unit: str
    target: Mapping[int, Pace]
    draft: Mapping[int, Pace] = field(default_factory=dict)
    serial_overhead_s: float = 0.0
    parallel_overhead_s: float = 0.0
    expansion_overhead_s: float = 0.0
    about: Mapping[str, str] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write the profile whole or not at all."""
        values = {
            "version": VERSION,
            "source": self.source,
            "unit": self.unit,
            "target": {str(units): list(pace.steps) for units, pace in self.target.items()},
            "draft": {str(units): list(pace.steps) for units, pace in self.draft.items()},
            "serial_overhead_s": self.serial_overhead_s,
            "parallel_overhead_s": self.parallel_overhead_s,
            "expansion_overhead_s": self.expansion_overhead_s,
            "about": dict(self.about),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(path.suffix + ".part")
        beside.write_text(json.dumps(values, indent=2) + "\n")
        beside.replace(path)

    @classmethod
    def read(cls, path: Path) -> "Profile":
        """The profile in a file.

        Raises:
            ConfigError: there is none, or it is not one.
        """
        try:
            values = json.loads(path.read_text())
            if values["version"] != VERSION:
                raise ConfigError(f"version {values['version']}, this forerun reads {VERSION}")
            if values["source"] not in get_args(Source):
                raise ConfigError(f"source {values['source']!r}")
            return cls(
                source=values["source"],
                unit=str(values["unit"]),
                target=read_paces(values["target"]),
                draft=read_paces(values["draft"]),
                about={str(key): str(value) for key, value in values["about"].items()},
                **{name: float(values[name]) for name in values if name.endswith("overhead_s")},
            )
        except OSError as error:
            raise ConfigError(
                f"the profile {path} cannot be read ({error}): make one with forerun plan --calibrate"
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
            raise ConfigError(
                f"{path} is no profile ({type(error).__name__}: {error}): make one with forerun plan --calibrate"
            ) from error


def read_paces(values: Mapping[str, list[tuple[int, float]]]) -> dict[int, Pace]:
    """Units to pace, out of JSON."""
    return {
        int(units): Pace(steps=tuple((int(rows), float(seconds)) for rows, seconds in steps))
        for units, steps in values.items()
    }
