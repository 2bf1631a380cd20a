"""What an experiment of a paper is: the contestants, where their figures come from, and what the paper says."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from forerun.core.drafter_config import DrafterConfig, DraftModel, LayerSkip, Parallel
from forerun.core.pace import Pace

Source = Literal["measured", "paced", "projected"]
SOURCES: Final[Mapping[Source, str]] = {
    "measured": "on this machine, with the models named here",
    "paced": "real rounds, processes and texts of a small pair, in which every pass lasts as long as the paper's",
    "projected": "computed by the planner from recorded guesses of a small pair and the paper's times; nothing ran",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What a paper says about a contestant; None: nothing.

    Args:
        speedup: over plain decoding.
        tokens_per_round: with the bonus token, by data set; "" for the mean over all.
        note: other figures, in words.
    """

    tokens_per_s: float | None = None
    speedup: float | None = None
    tokens_per_round: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One line of an experiment's table.

    Args:
        label: its name in files and reports.
        words: what it is.
        settings: of its engine, beside target and drafter.
        published: what the paper has for it.
        pace: of its target, to see whether this machine kept up.
    """

    label: str
    words: str
    drafter: DrafterConfig
    settings: Mapping[str, Any] = field(default_factory=dict)
    published: Published = Published()
    pace: Pace | None = None

    @property
    def verify_width(self) -> int | None:
        """Rows of each pass of its target; None: they vary."""
        drafter = self.drafter.draft if isinstance(self.drafter, Parallel) else self.drafter
        if isinstance(drafter, DraftModel | LayerSkip):
            return None if drafter.adaptive else drafter.verify_width
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """An experiment that `forerun bench run` plays: every question goes to all contestants, plain decoding first.

    Args:
        name: of its folder.
        stretch: all paces are so many times the paper's; speeds are multiplied by it.
    """

    name: str
    title: str
    source: Source
    contestants: tuple[Variant, ...]
    stretch: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of a paper's report.

    Args:
        dataset: "" for all data sets.
        low, high: ends of the 95 % interval of tokens/s.
        is_idle: no drafted token was accepted, so a ratio other than 1 is noise.
        is_planned: the planner chose the tree; its best one for a way to divide the machine.
    """

    experiment: str
    contestant: str
    words: str
    dataset: str
    source: Source
    tokens_per_s: float | None
    low: float | None = None
    high: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    tokens_per_round: float | None = None
    is_idle: bool = False
    is_planned: bool = False
    published_tokens_per_s: float | None = None
    published_ratio: float | None = None
    published_tokens_per_round: float | None = None
    published_note: str = ""
