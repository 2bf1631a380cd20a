"""What a section of the GPU check is made of: named cases that give rows, and under which circumstances they run."""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
Row = dict[str, object]


class NotThere(Exception):  # noqa: N818 (a fact, not an error)
    """What a case would measure does not exist here; the message says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Under which circumstances a section runs.

    Args:
        is_rehearsal: tiny shapes on the CPU in Triton's interpreter; times mean nothing.
        ends_at: in seconds of time.time(); no case begins later.
        copy_bytes_per_s: bytes read plus bytes written by large copies, as measured; 0 before that.
        matmul_per_s: operations of a large bfloat16 product; likewise.
        folder: for files of this run.
    """

    is_rehearsal: bool
    is_quick: bool
    ends_at: float
    folder: str
    copy_bytes_per_s: float = 0.0
    matmul_per_s: float = 0.0

    @property
    def device(self) -> str:
        return "cpu" if self.is_rehearsal else "cuda"

    @property
    def left_s(self) -> float:
        return self.ends_at - time.time()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Setting":
        return cls(**json.loads(text))

    def floor_share(self, moved_bytes: float, seconds: float) -> float | None:
        """The time that moving these bytes takes at the measured rate over the time taken; None without a rate."""
        return moved_bytes / self.copy_bytes_per_s / seconds if self.copy_bytes_per_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing to measure. Rows are kept as they come, whatever becomes of the rest.

    Args:
        warm: compiles what `run` will need; it runs beforehand, in one of several processes.
    """

    name: str
    run: Callable[[], Iterable[Row]]
    warm: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the check, whose module in this folder has a function `cases(setting)`.

    Args:
        share_s: seconds of a whole run of nine minutes; what earlier sections left over is shared out anew.
        case_limit_s: a case that takes longer hangs, and is ended together with its process.
        num_warmers: processes that compile beforehand; in a rehearsal one, for the first case.
        warm_share: of the section's time, the most that these take.
    """

    name: str
    share_s: float
    case_limit_s: float
    num_warmers: int = 0
    warm_share: float = 0.5


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What came of a section."""

    rows: list[Row] = field(default_factory=list)
    failures: list[Row] = field(default_factory=list)  # case, traceback
    skipped: list[Row] = field(default_factory=list)  # case, reason
    left_out: list[str] = field(default_factory=list)  # the time was over
    seconds: float = 0.0


SECTIONS = (
    Section(name="machine", share_s=20, case_limit_s=60),
    Section(name="suite", share_s=80, case_limit_s=200),
    Section(name="kernels", share_s=85, case_limit_s=60, num_warmers=10),
    Section(name="passes", share_s=75, case_limit_s=90, num_warmers=5),
    Section(name="rounds", share_s=140, case_limit_s=90, num_warmers=3),
    Section(name="peers", share_s=90, case_limit_s=120),
    Section(name="ranks", share_s=30, case_limit_s=120),
    Section(name="faults", share_s=30, case_limit_s=120),
    Section(name="bits", share_s=45, case_limit_s=60, num_warmers=5),
    Section(name="sweep", share_s=75, case_limit_s=60, num_warmers=12, warm_share=0.6),
)
