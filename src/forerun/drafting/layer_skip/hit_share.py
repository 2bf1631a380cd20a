"""Exponentially weighted hit rates, and a test for a drop below the past rate."""

import math

from forerun.drafting.layer_skip.settings import SearchSettings


class HitShare:
    """Hits and rows, with less weight on older ones.

    Args:
        memory: limit on the total weight, in rows.
        num_hits, num_rows: initial counts.
    """

    def __init__(self, memory: float, num_hits: float = 0.0, num_rows: float = 0.0) -> None:
        self._memory = memory
        self.num_hits, self.num_rows = num_hits, num_rows

    def record(self, num_hits: float, num_rows: float) -> None:
        self.forget(min(1.0, num_rows / self._memory))
        self.num_hits += num_hits
        self.num_rows += num_rows

    def forget(self, share: float) -> None:
        """Discount the counts by this share."""
        self.num_hits *= 1.0 - share
        self.num_rows *= 1.0 - share


class FallDetector:
    """Detects a recent hit rate well below the past one, for example after a change of text.

    Args:
        num_hits, num_rows: initial counts of the past rate.
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
