"""How a distillation tells how far it is, and how it is stopped."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillProgress:
    """How far a run is.

    Args:
        doing: what is being done.
        seconds, total_s: spent, of all.
        detail: what it brought so far, in words.
    """

    doing: str
    seconds: float
    total_s: float
    detail: str = ""


class DistillStop(Exception):  # noqa: N818 - a wish, not an error
    """Raised by what is told of the progress to end the run there; everything is kept first."""


OnProgress = Callable[[DistillProgress], None]
