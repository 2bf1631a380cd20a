"""When a search has found what it can, and how much scoring it still deserves."""

from typing import Final

STABLE: Final = 100  # evaluations without a gain after which the choice is settled
LONGEST: Final = 1000  # evaluations after which it is, whatever happens
GAIN: Final = 1.02  # that counts as one
SETTLED_SHARE: Final = 0.15  # of the scoring


class Settling:
    """Open while the set in use still gets better, then settled until something opens it again."""

    def __init__(self) -> None:
        self.is_open = True
        self.num_reopened = 0
        self._opened_at = self._gained_at = 0

    @property
    def share(self) -> float:
        """Of the scoring that could be done, how much should be."""
        return 1.0 if self.is_open else SETTLED_SHARE

    def change(self, num_evaluations: int, gain: float) -> None:
        """Another set has been taken, so many times as fast as the one before."""
        if gain >= GAIN:
            self._gained_at = num_evaluations

    def has_settled(self, num_evaluations: int) -> bool:
        """Whether it has just settled."""
        is_stable = num_evaluations - self._gained_at >= STABLE or num_evaluations - self._opened_at >= LONGEST
        if not (self.is_open and is_stable):
            return False
        self.is_open = False
        return True

    def reopen(self, num_evaluations: int) -> None:
        self.is_open = True
        self.num_reopened += 1
        self._opened_at = self._gained_at = num_evaluations
