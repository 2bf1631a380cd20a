"""Chooses the number of threads for a pass: fewer while other programs use the cores."""

from typing import Final

LEAST_STOPPED: Final = 6.0  # score that starts a trial: +1 for a pass that lost a core, -0.125 for one that did not
FORGOTTEN_BY_A_PASS: Final = 0.125
TRIAL_PASSES: Final = 4
TRIAL_S: Final = 0.03  # several time slices of the scheduler
LEAST_PAUSE_S: Final = 0.25  # between trials
PAUSE_OF_LOSS: Final = 20.0  # pause as a multiple of the time a trial lost, so trials cost at most a twentieth
WEIGHT_OF_NEW: Final = 0.125  # of a new time in the moving average
MOST_TIMES_USUAL: Final = 10.0  # longer passes are cut to this: the process was stopped, or the machine slept
WORTH_FEWER: Final = 0.95  # fewer threads are kept if they take less than this share of the time before
WORTH_MORE: Final = 0.9  # the same for more threads


class ThreadChooser:
    """Chooses between all requested threads, half of them, a quarter and so on, by measured pass times.

    If threads share cores with other programs, a pass waits for any thread that has lost its core. While no pass loses
    a core, every pass gets all threads. Otherwise half as many are tried for a few passes, and kept if these passes are
    faster than earlier ones with the same number of rows. Later, twice as many are tried in the same way.
    """

    def __init__(self) -> None:
        self._most = self._halvings = 0
        self._usual_s: dict[int, float] = {}  # average pass time by number of rows
        self._stopped = self._pause_s = 0.0
        self._tried: int | None = None  # replaces `_halvings` during a trial
        self._tried_fewer = False
        self._trial_passes = 0
        self._trial_s = self._expected_s = 0.0

    def threads(self, most: int) -> int:
        """Number of threads for the next pass, at most `most`."""
        if most != self._most:
            self._most = most
            self._halvings = 0
            self._tried = None
            self._usual_s = {}
            self._stopped = 0.0
            self._pause_s = 0.0
        return max(1, most >> (self._halvings if self._tried is None else self._tried))

    def told(self, num_rows: int, elapsed_s: float, *, is_stopped: bool) -> None:
        """Record the time of a pass, and whether one of its threads lost its core during it."""
        elapsed_s = min(elapsed_s, MOST_TIMES_USUAL * self._usual_s.get(num_rows, elapsed_s))
        if self._tried is not None:
            self._told_trial(num_rows, elapsed_s)
            return
        usual_s = self._usual_s.get(num_rows, elapsed_s)
        self._usual_s[num_rows] = usual_s + WEIGHT_OF_NEW * (elapsed_s - usual_s)
        self._stopped = max(0.0, self._stopped + (1.0 if is_stopped else -FORGOTTEN_BY_A_PASS))
        self._pause_s -= elapsed_s
        if self._pause_s > 0:
            return
        can_be_fewer = self._stopped >= LEAST_STOPPED and self._most >> self._halvings > 1
        if self._halvings == 0:
            if can_be_fewer:
                self._start_trial(fewer=True)
        else:
            self._start_trial(fewer=can_be_fewer and not self._tried_fewer)

    def _told_trial(self, num_rows: int, elapsed_s: float) -> None:
        assert self._tried is not None
        self._trial_s += elapsed_s
        self._expected_s += self._usual_s.get(num_rows, elapsed_s)
        self._trial_passes += 1
        if self._trial_passes < TRIAL_PASSES or self._trial_s < TRIAL_S:
            return
        is_worth_it = self._trial_s < self._expected_s * (WORTH_FEWER if self._tried_fewer else WORTH_MORE)
        pause_s = max(LEAST_PAUSE_S, PAUSE_OF_LOSS * (self._trial_s - self._expected_s))
        if is_worth_it:
            self._halvings = self._tried
            self._usual_s = {}
        self._tried = None
        self._stopped = 0.0
        self._pause_s = pause_s

    def _start_trial(self, *, fewer: bool) -> None:
        self._tried = self._halvings + (1 if fewer else -1)
        self._tried_fewer = fewer
        self._trial_s = self._expected_s = 0.0
        self._trial_passes = 0
