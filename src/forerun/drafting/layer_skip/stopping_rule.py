"""When a search has found what it can, and how much scoring it still deserves."""

from forerun.drafting.layer_skip.settings import TUNED, SearchSettings


class StoppingRule:
    """Open while the set in use still gets better, then settled until something opens it again."""

    def __init__(self, settings: SearchSettings = TUNED) -> None:
        self._settings, self.is_open, self.num_reopened = settings, True, 0
        self._opened_at = self._gained_at = 0

    @property
    def share(self) -> float:
        """Of the scoring that could be done, how much should be."""
        return 1.0 if self.is_open else self._settings.settled_share

    def change(self, num_evaluations: int, gain: float) -> None:
        """Another set has been taken, so many times as fast as the one before."""
        if gain >= self._settings.gain:
            self._gained_at = num_evaluations

    def settles(self, num_evaluations: int) -> bool:
        """Close the search where that is due; True where this has just happened."""
        since_gain, since_opening = num_evaluations - self._gained_at, num_evaluations - self._opened_at
        is_stable = since_gain >= self._settings.stable or since_opening >= self._settings.longest
        if not (self.is_open and is_stable):
            return False
        self.is_open = False
        return True

    def reopen(self, num_evaluations: int) -> None:
        self.is_open = True
        self.num_reopened += 1
        self._opened_at = self._gained_at = num_evaluations
