"""Seconds of a round of the target by its rows: measured before the first request, corrected by every round.

No clock: times are passed in.
"""

from typing import Final

from forerun.core.pace import Pace

SMOOTHING: Final = 0.02  # weight of the newest measurement in a running mean
TRUSTED: Final = 16.0  # rounds of one width that count as much as the measurement before the first request
MEMORY: Final = 96.0  # rounds that are remembered, of all widths
FEWEST: Final = 8.0  # rounds of one width before they say something of other widths
MOST_WEIGHT: Final = 1e9  # of the newest round, before all weights are divided by it
STALL: Final = 1.5  # times the expected time that a round counts as at most: longer is other load on the machine


class RoundCosts:
    """What a round takes without its drafting, by its rows.

    A width that was not played yet is estimated by its pass, and by what other rounds took beyond theirs. If
    plain rounds turn out shorter than their pass was measured, other load slowed that: all widths are corrected alike,
    and count for less.

    Args:
        pace: seconds of a pass by its rows.
        beyond_s: initial seconds of a round beyond its pass.
    """

    def __init__(self, pace: Pace, beyond_s: float = 0.0) -> None:
        self.pass_s = [pace.step_s(rows) for rows in range(1, pace.steps[-1][0] + 1)]
        self.beyond_s = self._drafted_beyond_s = self._first_beyond_s = beyond_s
        self.allowed_rows = len(self.pass_s)  # most rows of the round that begins
        self._weight = 1.0  # of the newest round; it grows instead of fading all others
        self._sum_s, self._sum_rounds = [0.0] * len(self.pass_s), [0.0] * len(self.pass_s)  # weighted, by rows
        self._trusted = TRUSTED  # the same for what was measured before the first request
        self._played = set[int]()  # rows - 1 of rounds that were measured

    @property
    def plain_s(self) -> float:
        """Seconds of a round that drafts nothing."""
        return self.step_s(1)

    def step_s(self, num_rows: int) -> float:
        """Seconds of a round with so many rows."""
        place, prior = min(num_rows, len(self.pass_s)) - 1, self._trusted * self._weight
        expected_s = self.pass_s[place] + (self._drafted_beyond_s if place else self.beyond_s)
        return (self._sum_s[place] + prior * expected_s) / (self._sum_rounds[place] + prior)

    def all_s(self, most: int) -> list[float]:
        """The same of every number of rows that the round may have, from one up to `most`."""
        return [self.step_s(rows) for rows in range(1, min(most, self.allowed_rows, len(self.pass_s)) + 1)]

    def rows_within(self, extra_s: float, proposal_s: float, proposal_rows: float) -> int:
        """The most rows of a round that takes at most so much longer than a plain one; 1 at least.

        Args:
            proposal_s: what proposals took of late, on average.
            proposal_rows: the rows that they had; smaller ones take less.
        """
        plain_s, num_rows = self.plain_s, 1
        for rows, seconds in enumerate(map(self.step_s, range(1, len(self.pass_s) + 1)), 1):
            if seconds - plain_s + proposal_s * min(1.0, rows / proposal_rows) > extra_s:
                break
            num_rows = rows
        return num_rows

    def measure(self, num_rows: int, seconds: float, num_rounds: int = 1) -> None:
        """Take the time of rounds with so many rows, of each of them."""
        place = min(num_rows, len(self.pass_s)) - 1
        capped_s = min(seconds, STALL * self.step_s(num_rows))
        self._weight *= 1.0 + num_rounds / MEMORY
        self._sum_s[place] += self._weight * num_rounds * capped_s
        self._sum_rounds[place] += self._weight * num_rounds
        self._played.add(place)
        if self._weight > MOST_WEIGHT:
            self._sum_s = [total / self._weight for total in self._sum_s]
            self._sum_rounds = [total / self._weight for total in self._sum_rounds]
            self._weight = 1.0
        if not self._is_known(place):
            return
        mean_s = self._sum_s[place] / self._sum_rounds[place]
        if place == 0 and mean_s < self.pass_s[0] and self._sum_rounds[0] >= TRUSTED * self._weight:
            share = mean_s / self.pass_s[0]
            self.pass_s, self._trusted = [share * pass_s for pass_s in self.pass_s], share**4 * self._trusted
        beyond_s = {place: self._mean_beyond_s(place) for place in self._played if self._is_known(place)}
        # The least: of a pass that was measured too short, all rounds take longer.
        self.beyond_s = max(0.0, min(beyond_s.values()))
        drafted_s = [seconds for place, seconds in beyond_s.items() if place]
        self._drafted_beyond_s = max(self.beyond_s, min(drafted_s)) if drafted_s else self.beyond_s

    def _is_known(self, place: int) -> bool:
        return self._sum_rounds[place] >= FEWEST * self._weight

    def _mean_beyond_s(self, place: int) -> float:
        prior, rounds = self._trusted * self._weight, self._sum_rounds[place]
        beyond_s = self._sum_s[place] - rounds * self.pass_s[place]
        return (beyond_s + prior * self._first_beyond_s) / (rounds + prior)


def blend(mean: float, newest: float) -> float:
    """A running mean; the first value counts whole."""
    return mean + SMOOTHING * (newest - mean) if mean else newest


def blend_time(mean_s: float, newest_s: float, pass_s: float) -> float:
    """A running mean of times beyond a pass, from 0 up; each is capped at the pass, since one on a briefly busy machine
    would distort the mean for long."""
    return max(0.0, mean_s + SMOOTHING * (min(newest_s, max(pass_s, 2.0 * mean_s)) - mean_s))
