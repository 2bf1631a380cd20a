"""The shape of a pass, on which its launches depend."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from forerun.core.sublayers import SkipSet


@dataclass(frozen=True, slots=True, kw_only=True)
class PassShape:
    """The parameters on which a pass's launches depend; everything else is data on the device.

    Args:
        num_splits: upper bound of the number of attention splits entirely in the prefix.
        num_logit_rows: number of rows at the end that get logits.
        taps: layers after which the residual stream is copied.
    """

    num_rows: int
    num_splits: int
    num_logit_rows: int
    skipped: SkipSet
    has_row_skips: bool = False
    taps: tuple[int, ...] = ()


Launch: TypeAlias = Callable[[PassShape], None]
