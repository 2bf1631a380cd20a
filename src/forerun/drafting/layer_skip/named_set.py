"""A named skip set with its hit record, which one search passes to the next."""

from dataclasses import dataclass

from forerun.core.sublayers import SkipSet


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSet:
    """Sublayers to skip, and how often the rest of the model guessed the next token.

    Args:
        name: used only in reports.
        skipped: the sublayers that a draft pass leaves out.
        num_hits: right guesses; old ones may count for less than one.
        num_rows: all guesses, weighted alike.
    """

    name: str
    skipped: SkipSet
    num_hits: float = 0.0
    num_rows: float = 0.0
