"""Seconds of a target round by its number of rows: measured before the first request, and corrected by every round.

Callers pass in times; no clock is read.
"""

from typing import Final

from forerun.core.pace import Pace

SMOOTHING: Final = 0.02  # weight of the newest measurement in `blend` and `blend_time`
NEWEST: Final = 0.1  # least weight of the newest value in a `RunningMean`
TRUSTED: Final = 16.0  # weight, in rounds, of the measurement before the first request
MEMORY: Final = 96.0  # number of rounds, of all widths, over which old ones fade
FEWEST: Final = 8.0  # rounds of one width before they are used to estimate other widths
MOST_WEIGHT: Final = 1e9  # limit on the newest round's weight, at which all weights are divided by it
LEAST_RATIO: Final = 4.0  # of a target's parameters to its draft's; below it drafting costs as much as it gains
STALL: Final = 1.5  # cap on a round's time, in expected times: anything longer is due to other load


def is_small_enough(num_draft: int, num_target: int) -> bool:
    """Whether a draft model of `num_draft` parameters can pay off for a target of `num_target`."""
    return num_target >= LEAST_RATIO * num_draft


class RoundCosts:
    """Seconds of a round without its drafting, by its number of rows.

    A width that was not played yet is estimated as the time of its pass plus the overhead of other rounds. If plain
    rounds turn out shorter than their measured pass, other load must have slowed the measurement: the measured times of
    all widths are then reduced by the same factor and get less weight.

    Args:
        pace: seconds of a pass by its rows.
        beyond_s: initial seconds of a round beyond its pass.
    """

    def __init__(self, pace: Pace, beyond_s: float = 0.0) -> None:
        self.pass_s = [pace.step_s(rows) for rows in range(1, pace.steps[-1][0] + 1)]
        self.beyond_s = self._drafted_beyond_s = self._first_beyond_s = beyond_s
        self._weight = 1.0  # of the newest round; it grows, which is cheaper than reducing all others
        self._sum_s = [0.0] * len(self.pass_s)  # weighted, by rows
        self._sum_rounds = [0.0] * len(self.pass_s)  # likewise
        self._trusted = TRUSTED  # weight of the measurement before the first request
        self._played = set[int]()  # rows - 1 of each measured width
        self._num_plain = 0  # plain rounds

    @property
    def plain_s(self) -> float:
        """Seconds of a round without a draft."""
        return self.step_s(1)

    @property
    def knows_plain(self) -> bool:
        """Whether enough plain rounds were played to compare others with them."""
        return self._num_plain >= FEWEST

    def step_s(self, num_rows: int) -> float:
        """Seconds of a round with this number of rows."""
        place = min(num_rows, len(self.pass_s)) - 1
        prior = self._trusted * self._weight
        expected_s = self.pass_s[place] + (self._drafted_beyond_s if place else self.beyond_s)
        return (self._sum_s[place] + prior * expected_s) / (self._sum_rounds[place] + prior)

    def all_s(self, most: int) -> list[float]:
        """`step_s` for every number of rows from 1 to `most`."""
        return [self.step_s(rows) for rows in range(1, min(most, len(self.pass_s)) + 1)]

    def rows_within(self, extra_s: float, proposal_s: float, proposal_rows: float) -> int:
        """The most rows with which a round takes at most `extra_s` longer than a plain one; at least 1.

        Args:
            proposal_s: recent mean time of proposals.
            proposal_rows: recent mean of their rows; smaller proposals are assumed to take proportionally less.
        """
        plain_s = self.plain_s
        num_rows = 1
        for rows, seconds in enumerate(map(self.step_s, range(1, len(self.pass_s) + 1)), 1):
            if seconds - plain_s + proposal_s * min(1.0, (rows - 1) / max(1.0, proposal_rows - 1.0)) > extra_s:
                break
            num_rows = rows
        return num_rows

    def measure(self, num_rows: int, seconds: float, num_rounds: int = 1) -> None:
        """Record rounds with this number of rows; `seconds` is the time of one of them."""
        place = min(num_rows, len(self.pass_s)) - 1
        capped_s = min(seconds, STALL * self.step_s(num_rows))
        self._weight *= 1.0 + num_rounds / MEMORY
        self._sum_s[place] += self._weight * num_rounds * capped_s
        self._sum_rounds[place] += self._weight * num_rounds
        self._played.add(place)
        self._num_plain += 0 if place else num_rounds
        if self._weight > MOST_WEIGHT:
            self._sum_s = [total / self._weight for total in self._sum_s]
            self._sum_rounds = [total / self._weight for total in self._sum_rounds]
            self._weight = 1.0
        if not self._is_known(place):
            return
        mean_s = self._sum_s[place] / self._sum_rounds[place]
        if place == 0 and mean_s < self.pass_s[0] and self._sum_rounds[0] >= TRUSTED * self._weight:
            share = mean_s / self.pass_s[0]
            self.pass_s = [share * pass_s for pass_s in self.pass_s]
            self._trusted = share**4 * self._trusted
        beyond_s = {place: self._mean_beyond_s(place) for place in self._played if self._is_known(place)}
        # The minimum, because the overhead is overestimated at widths whose pass was measured too short.
        self.beyond_s = max(0.0, min(beyond_s.values()))
        drafted_s = [seconds for place, seconds in beyond_s.items() if place]
        self._drafted_beyond_s = max(self.beyond_s, min(drafted_s)) if drafted_s else self.beyond_s

    def _is_known(self, place: int) -> bool:
        return self._sum_rounds[place] >= FEWEST * self._weight

    def _mean_beyond_s(self, place: int) -> float:
        prior = self._trusted * self._weight
        rounds = self._sum_rounds[place]
        beyond_s = self._sum_s[place] - rounds * self.pass_s[place]
        return (beyond_s + prior * self._first_beyond_s) / (rounds + prior)


class RunningMean:
    """The mean of all values at first, later of recent ones: the newest counts at least with weight NEWEST."""

    def __init__(self) -> None:
        self.value = 0.0
        self._num_values = 0

    def add(self, newest: float) -> None:
        """Add a value."""
        self._num_values += 1
        self.value += max(NEWEST, 1.0 / self._num_values) * (newest - self.value)


def blend(mean: float, newest: float, weight: float = SMOOTHING) -> float:
    """A running mean; the first value is taken as it is."""
    return mean + weight * (newest - mean) if mean else newest


def blend_time(mean_s: float, newest_s: float, pass_s: float) -> float:
    """A running mean, at least 0, of times beyond a pass. Each is capped, by default at the pass, because one long time
    on a briefly busy machine would distort the mean for long."""
    return max(0.0, mean_s + SMOOTHING * (min(newest_s, max(pass_s, 2.0 * mean_s)) - mean_s))
