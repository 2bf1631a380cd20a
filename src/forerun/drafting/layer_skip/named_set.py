"""A skip set with its name and what it was seen to be worth: what a search hands on to the next one."""

from dataclasses import dataclass

from forerun.core.sublayers import SkipSet


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSet:
    """Sublayers to skip, and how often the rest of the model guessed the next token.

    Args:
        name: for reports; nothing hangs on it.
        skipped: the sublayers that a draft pass leaves out.
        num_hits: guesses that came true; old ones may count for less than one.
        num_rows: guesses in all, weighed alike.
    """

    name: str
    skipped: SkipSet
    num_hits: float = 0.0
    num_rows: float = 0.0
