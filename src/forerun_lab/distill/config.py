"""The user's settings of a distillation, its progress reports, and the exception that stops it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from forerun.core.config import EngineConfig
from forerun.core.errors import require

DraftKind = Literal["model", "eagle3", "dflash"]  # heads are rows of `TRAINABLE`
LEAST_TIME_S: Final = 5.0
SAVE_EVERY_S: Final = 25.0  # a killed run loses no more than a minute, with room for a slow disk and a slow pass


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillConfig:
    """The settings of a distillation.

    Args:
        engine: the target, and where it runs.
        out: the draft's folder.
        time: seconds of writing and training, summed over all calls.
        text: files that the target also reads, see `read_given`.
        questions: users' questions that the target answers in addition to questions it makes up.
        layers, hidden_size, vocab_size: sizes of the draft; None: chosen to suit the target.
        other_devices: devices on which further processes write texts; None: all other GPUs if the device is "cuda".
        save_every_s: seconds between saves, the most that a killed run loses.
        kind: "model" is a small Llama, the others are heads on the target's features.
    """

    engine: EngineConfig
    out: Path
    time: float
    text: tuple[Path, ...] = ()
    questions: tuple[str, ...] = ()
    layers: int | None = None
    hidden_size: int | None = None
    vocab_size: int | None = None
    seed: int = 1
    other_devices: tuple[str, ...] | None = None
    save_every_s: float = SAVE_EVERY_S
    kind: DraftKind = "model"

    def __post_init__(self) -> None:
        require(self.time >= LEAST_TIME_S, f"time {self.time:g} must be >= {LEAST_TIME_S:g} seconds")
        for name in ("layers", "hidden_size", "vocab_size"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name} {value} must be >= 1")
        is_fixed = self.kind == "model" or self.hidden_size is None
        require(is_fixed, f"hidden_size {self.hidden_size} of a head must be left out: it is the target's")

    @property
    def run_folder(self) -> Path:
        """The folder of the run's own files, inside the draft's folder."""
        return self.out / "distill"


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillProgress:
    """The progress of a run.

    Args:
        doing: the current step, in words.
        seconds, total_s: seconds spent, and seconds planned in all.
        detail: the results so far, in words.
    """

    doing: str
    seconds: float
    total_s: float
    detail: str = ""


class DistillStop(Exception):  # noqa: N818 - a request, not an error
    """Raised by a progress callback to end the run; everything is saved first."""


OnProgress = Callable[[DistillProgress], None]
