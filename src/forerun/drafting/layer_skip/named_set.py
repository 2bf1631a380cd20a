"""A named skip set with its hit record, which is saved for later searches."""

from dataclasses import dataclass

from forerun.core.sublayers import SkipSet


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSet:
    """Sublayers to skip, and how often the rest of the model predicted the next token.

    Args:
        name: used only in reports.
        skipped: the sublayers that a draft pass skips.
        num_hits: correct guesses; old ones may count less than one.
        num_rows: all guesses, with the same weights.
    """

    name: str
    skipped: SkipSet
    num_hits: float = 0.0
    num_rows: float = 0.0
