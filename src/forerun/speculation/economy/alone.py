"""Whether a drafter without others beside it drafts: the chooser's answer, for one that plays plain rounds itself.

No clock: times are passed in.
"""

from typing import Final

from forerun.speculation.economy.choice import Chooser
from forerun.speculation.economy.costs import RoundCosts

ALONE: Final = "alone"


class Alone:
    """The choice for a drafter that plays its plain rounds itself: it is tried by drafting, not by being watched.

    Args:
        costs: of the target's rounds; the drafter measures its rounds there.
    """

    def __init__(self, costs: RoundCosts) -> None:
        self._chooser = Chooser((ALONE,), costs)

    def begin(self, temperature: float) -> None:
        """An answer begins."""
        self._chooser.begin(temperature)

    def should_draft(self) -> bool:
        """Whether the next round drafts."""
        turn = self._chooser.turn
        return turn.drafter is not None or turn.watched is not None

    def measure(self, num_tokens: int, seconds: float, num_rounds: int = 1) -> None:
        """Take a round of the kind that `should_draft` asked for, or some of them together."""
        self._chooser.measure_whole(num_tokens, seconds, num_rounds)
