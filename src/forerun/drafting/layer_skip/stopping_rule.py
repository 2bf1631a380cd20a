"""Decides when a search has converged, and how much scoring continues."""

from forerun.drafting.layer_skip.settings import TUNED, SearchSettings


class StoppingRule:
    """Open while better sets are still being found, then closed until `reopen`."""

    def __init__(self, settings: SearchSettings = TUNED) -> None:
        self._settings, self.is_open, self.num_reopened = settings, True, 0
        self._opened_at = self._gained_at = 0

    @property
    def share(self) -> float:
        """The share of the possible scoring to do."""
        return 1.0 if self.is_open else self._settings.settled_share

    def change(self, num_evaluations: int, gain: float) -> None:
        """Record a change of the set in use; `gain` is the new speed divided by the old."""
        if gain >= self._settings.gain:
            self._gained_at = num_evaluations

    def settles(self, num_evaluations: int) -> bool:
        """Close the search if it has converged; True if it was closed just now."""
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
