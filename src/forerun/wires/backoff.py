"""The delay before the next attempt, which grows with each failure."""

from time import monotonic
from typing import Final

FIRST_DELAY_S: Final = 0.1  # short enough that a user does not notice a restart after a single crash
MAX_DELAY_S: Final = 5.0  # a process that is available again after hours is found within this time


def delay_s(num_failures: int) -> float:
    """Seconds to wait after `num_failures` in a row, at least one."""
    return min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** min(num_failures - 1, 16))  # bounded to avoid overflow


class Backoff:
    """Determines when a failed action may be tried again."""

    def __init__(self) -> None:
        self._num_failures, self._retry_at = 0, 0.0

    def is_over(self) -> bool:
        """Whether the next attempt may begin."""
        return monotonic() >= self._retry_at

    def note_failure(self) -> None:
        """Note a failure, or an attempt, which counts as a failure until it succeeds."""
        self._num_failures += 1
        self._retry_at = monotonic() + delay_s(self._num_failures)

    def note_success(self) -> None:
        """Note a success, so that the next failure counts as the first one."""
        self._num_failures = 0

    def give_up(self) -> None:
        """Never try again."""
        self._retry_at = float("inf")
