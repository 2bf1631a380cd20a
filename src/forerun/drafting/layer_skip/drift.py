"""Whether a text has changed under a draft: its recent hits against those before."""

import math
from typing import Final

RECENT: Final = 64.0  # rows after which the recent share forgets
LASTING: Final = 2048.0  # rows after which the share it is held against forgets
FEWEST: Final = 32.0  # rows on either side before anything is said
FALL: Final = 3.0  # deviations below
OVERDISPERSION: Final = 1.5  # variance of hits over that of independent ones: texts have easy and hard stretches


class RunningShare:
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


class DriftWatch:
    """A running share of hits, and whether it has fallen below its own past.

    Args:
        num_hits, num_rows: what it is held against, from before.
    """

    def __init__(self, num_hits: float = 0.0, num_rows: float = 0.0) -> None:
        self._recent = RunningShare(RECENT)
        self._past = RunningShare(LASTING, num_hits, num_rows)

    def record(self, num_hits: float, num_rows: float) -> None:
        self._recent.record(num_hits, num_rows)
        self._past.record(num_hits, num_rows)

    def has_fallen(self) -> bool:
        """Whether the recent share lies three deviations below the lasting one."""
        recent, past = self._recent, self._past
        if recent.num_rows < FEWEST or past.num_rows < recent.num_rows + FEWEST:
            return False
        share = (past.num_hits + 1.0) / (past.num_rows + 2.0)
        variance = OVERDISPERSION * share * (1.0 - share) * (1.0 / recent.num_rows + 1.0 / past.num_rows)
        return recent.num_hits / recent.num_rows < share - FALL * math.sqrt(variance)
