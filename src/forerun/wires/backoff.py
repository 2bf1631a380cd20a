"""Delay before the next attempt, longer after each failure."""

from time import monotonic
from typing import Final

FIRST_DELAY_S: Final = 0.1  # a process that died by accident is back before a reader notices
MAX_DELAY_S: Final = 5.0  # one that comes back after hours is found within this time


def delay_s(num_failures: int) -> float:
    """Seconds to wait after `num_failures` in a row, at least one."""
    return min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** min(num_failures - 1, 16))  # bounded, or it overflows one day


class Backoff:
    """When something that fails may be tried again."""

    def __init__(self) -> None:
        self._num_failures, self._retry_at = 0, 0.0

    def is_over(self) -> bool:
        """True when it may be tried."""
        return monotonic() >= self._retry_at

    def note_failure(self) -> None:
        """It has failed, or is tried now, which counts as a failure until the opposite is known."""
        self._num_failures += 1
        self._retry_at = monotonic() + delay_s(self._num_failures)

    def note_success(self) -> None:
        """It works: the next failure counts as the first one."""
        self._num_failures = 0

    def give_up(self) -> None:
        """It is not to be tried again."""
        self._retry_at = float("inf")
