"""Progress reports of a distillation, and the exception that stops it."""

from collections.abc import Callable
from dataclasses import dataclass


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
