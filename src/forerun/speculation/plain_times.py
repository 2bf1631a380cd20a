"""What plain decoding takes while a drafter writes: when to time it, and what drafting gains over it.

No clock: times are told.
"""

from collections import deque
from collections.abc import Sequence
from math import sqrt
from statistics import fmean, median, stdev
from typing import Final

from forerun.core.steps import Speedup

STRETCH: Final = 4  # plain rounds in a row
UNCOUNTED: Final = 1  # of them, at the start: the caches still hold what the drafter worked on
SHARE: Final = 0.03  # of the time that is spent on such stretches; their tokens are part of the text
NEAR_S: Final = 1.0  # before a request: rounds timed so long ago still stand for it
ENOUGH: Final = 16  # plain rounds, after which no more are timed once the text has ended
FEWEST: Final = 6  # plain rounds that say anything
FEWEST_TOKENS: Final = 24  # of a text that a speed-up can be told of
OUTLIER: Final = 2.0  # medians; a longer round was disturbed by others
WIDEST: Final = 0.10  # relative half-width of an interval that is still worth telling
KEPT: Final = 4096  # rounds


class PlainTimes:
    """Plain rounds as they were timed, and whether it is time for more."""

    def __init__(self) -> None:
        self._timed: deque[tuple[float, float]] = deque(maxlen=KEPT)  # when each ended, and what it took
        self._saved_s = 0.0
        self._quickest_s = 0.0

    def pass_by(self, seconds: float) -> None:
        """A round of another kind went by."""
        self._quickest_s = min(self._quickest_s or seconds, seconds)
        self._saved_s = min(self._saved_s + SHARE * seconds, 2 * self._stretch_s)

    @property
    def is_due(self) -> bool:
        """True where a stretch of plain rounds fits into their share of the time."""
        return 0.0 < self._stretch_s <= self._saved_s

    def spend(self, seconds: float) -> None:
        """A stretch has taken so long, with everything that it brought along."""
        self._saved_s -= seconds

    def note(self, ended_at_s: float, seconds: float) -> None:
        """A plain round was timed."""
        self._timed.append((ended_at_s, seconds))

    def near(self, began_at_s: float) -> list[float]:
        """Seconds of the plain rounds since shortly before then."""
        return [seconds for ended_at_s, seconds in self._timed if ended_at_s > began_at_s - NEAR_S]

    @property
    def _stretch_s(self) -> float:
        """What a stretch will take: by the last plain round, else by the quickest round of any kind."""
        return STRETCH * (self._timed[-1][1] if self._timed else self._quickest_s)


def speedup_of(num_tokens: int, num_rounds: int, seconds: float, plain: Sequence[float]) -> Speedup | None:
    """The speed-up of a text over plain rounds timed about the same time; None where that is not known well enough.

    A round cannot be quicker than a plain one, so that no text is written faster than by its tokens per round: where
    noise says so, that limit stands, and where more than noise does, nothing is told.

    Args:
        num_tokens, num_rounds, seconds: of the text.
        plain: seconds of plain rounds.
    """
    if num_tokens < FEWEST_TOKENS or len(plain) < FEWEST or seconds <= 0.0:
        return None
    longest_s = OUTLIER * median(plain)
    times = [min(time_s, longest_s) for time_s in plain]
    token_s, most = fmean(times), num_tokens / num_rounds
    half_width = 2.0 * stdev(times) / sqrt(len(times)) / token_s
    value = num_tokens * token_s / seconds
    if half_width > WIDEST or value * (1 - half_width) > most:
        return None
    return Speedup(
        value=min(value, most),
        low=value * (1 - half_width),
        high=min(value * (1 + half_width), most),
        plain_token_s=token_s,
        num_plain_rounds=len(times),
    )
