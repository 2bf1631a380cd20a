"""Shares of right guesses that forget, and whether one has fallen below its own past."""

import math

from forerun.drafting.layer_skip.settings import SearchSettings


class HitShare:
    """Hits and rows, of which older ones count for less.

    Args:
        memory: rows that count at most, all together.
        num_hits, num_rows: from before.
    """

    def __init__(self, memory: float, num_hits: float = 0.0, num_rows: float = 0.0) -> None:
        self._memory = memory
        self.num_hits, self.num_rows = num_hits, num_rows

    def record(self, num_hits: float, num_rows: float) -> None:
        self.forget(min(1.0, num_rows / self._memory))
        self.num_hits += num_hits
        self.num_rows += num_rows

    def forget(self, share: float) -> None:
        """Give up this share of what was seen."""
        self.num_hits *= 1.0 - share
        self.num_rows *= 1.0 - share


class FallDetector:
    """Says when the recent share of hits lies well below the one before, as it does when the text becomes another.

    Args:
        num_hits, num_rows: what it is held against, from before.
    """

    def __init__(self, settings: SearchSettings, num_hits: float, num_rows: float) -> None:
        self._settings = settings
        self._recent = HitShare(settings.fall_recent)
        self._past = HitShare(settings.fall_past, num_hits, num_rows)

    def record(self, num_hits: float, num_rows: float) -> None:
        self._recent.record(num_hits, num_rows)
        self._past.record(num_hits, num_rows)

    def has_fallen(self) -> bool:
        recent, past, settings = self._recent, self._past, self._settings
        if recent.num_rows < settings.fall_least or past.num_rows < recent.num_rows + settings.fall_least:
            return False
        share = (past.num_hits + 1.0) / (past.num_rows + 2.0)
        variance = settings.overdispersion * share * (1.0 - share) * (1.0 / recent.num_rows + 1.0 / past.num_rows)
        return recent.num_hits / recent.num_rows < share - settings.fall_deviations * math.sqrt(variance)
