"""Decides whether to draft when there is only one drafter, which plays plain rounds itself.

Callers pass in times; no clock is read.
"""

from typing import Final

from forerun.speculation.economy.choice import Chooser
from forerun.speculation.economy.costs import RoundCosts

ALONE: Final = "alone"


class Alone:
    """A `Chooser` for one drafter that plays plain rounds itself. Where the chooser would watch it, it drafts instead.

    Args:
        costs: costs of the target's rounds, to which the drafter adds its measurements.
    """

    def __init__(self, costs: RoundCosts) -> None:
        self._chooser = Chooser((ALONE,), costs)

    def begin(self, temperature: float) -> None:
        """Begin an answer."""
        self._chooser.begin(temperature)

    def should_draft(self) -> bool:
        """Whether the next round drafts."""
        turn = self._chooser.turn
        return turn.drafter is not None or turn.watched is not None

    def measure(self, num_tokens: int, seconds: float, num_rounds: int = 1) -> None:
        """Record a round of the kind that `should_draft` gave, or several together."""
        self._chooser.measure_whole(num_tokens, seconds, num_rounds)
