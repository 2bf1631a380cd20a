"""What plain decoding takes while a drafter writes: when to time it, and what drafting gains over it.

No clock: times are told.
"""

from collections import deque
from collections.abc import Sequence
from math import sqrt
from statistics import quantiles
from typing import Final

from forerun.core.steps import Speedup

WARM_UP_S: Final = 2e-3  # of plain rounds that do not count: the caches still hold what the drafter worked on
COUNTED: Final = 3  # rounds of a stretch among drafted ones that do
SHARE: Final = 0.03  # of the time that is spent on such stretches; their tokens are part of the text
ENOUGH: Final = 16  # plain rounds ...
ENOUGH_S: Final = 0.02  # ... and their seconds, after which no more are timed behind a text
FEWEST: Final = 6  # plain rounds that say anything
FEWEST_TOKENS: Final = 24  # of a text that a speed-up can be told of
MEDIAN_ERROR: Final = 0.93  # of n values' median: so many interquartile ranges over sqrt(n), for a normal distribution
WIDEST: Final = 0.10  # relative half-width of an interval that is still worth telling
KEPT: Final = 4096  # rounds


class PlainTimes:
    """Plain rounds as they were timed, and whether it is time for more.

    Rounds behind a text have more context than those in its middle had. In models of a few million parameters a hundred
    tokens more are some percent of the time, which is taken off.

    Args:
        context_s: seconds that a round takes longer for a token more of context.
    """

    def __init__(self, context_s: float = 0.0) -> None:
        self._context_s = context_s
        self._timed: deque[tuple[float, float]] = deque(maxlen=KEPT)  # when each ended, what it took without context
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

    def note(self, ended_at_s: float, seconds: float, context: int) -> None:
        """A plain round was timed that counts, with so many tokens before it."""
        self._timed.append((ended_at_s, seconds - self._context_s * context))

    def since(self, began_at_s: float, context: float) -> list[float]:
        """Seconds of the plain rounds since then, as they would be with so many tokens before them."""
        more_s = self._context_s * context
        return [seconds + more_s for ended_at_s, seconds in self._timed if ended_at_s > began_at_s]

    def has_enough(self, began_at_s: float) -> bool:
        """Whether the plain rounds since then tell what plain decoding takes."""
        timed = self.since(began_at_s, 0)
        return len(timed) >= ENOUGH and sum(timed) >= ENOUGH_S

    @property
    def _stretch_s(self) -> float:
        """What a stretch will take: by the last plain round, else by the quickest round of any kind."""
        round_s = self._timed[-1][1] if self._timed else self._quickest_s
        return WARM_UP_S + (1 + COUNTED) * round_s if round_s else 0.0


class Stretch:
    """Plain rounds in a row. The first of them do not count: a round of a quarter of a millisecond takes a fifth longer
    until the caches hold what plain decoding reads."""

    def __init__(self, times: PlainTimes) -> None:
        self._times, self._played_s, self.num_counted = times, 0.0, 0

    def note(self, ended_at_s: float, seconds: float, context: int) -> None:
        """A round was timed."""
        if self._played_s >= WARM_UP_S:
            self._times.note(ended_at_s, seconds, context)
            self.num_counted += 1
        self._played_s += seconds


def speedup_of(num_tokens: int, num_rounds: int, seconds: float, plain: Sequence[float]) -> Speedup | None:
    """The speed-up of a text over plain rounds timed about the same time; None where that is not known well enough.

    A round cannot be quicker than a plain one, so that no text is written faster than by its tokens per round: where
    noise says so, that limit stands, and where more than noise does, nothing is told. Of the plain rounds the median
    counts, which those that others on the machine disturbed do not move.

    Args:
        num_tokens, num_rounds, seconds: of the text.
        plain: seconds of plain rounds.
    """
    if num_tokens < FEWEST_TOKENS or len(plain) < FEWEST or seconds <= 0.0:
        return None
    lower, token_s, upper = quantiles(plain, n=4, method="inclusive")
    half_width = 2.0 * MEDIAN_ERROR * (upper - lower) / sqrt(len(plain)) / token_s
    most = num_tokens / num_rounds
    value = num_tokens * token_s / seconds
    if half_width > WIDEST or value * (1 - half_width) > most:
        return None
    return Speedup(
        value=min(value, most),
        low=value * (1 - half_width),
        high=min(value * (1 + half_width), most),
        plain_token_s=token_s,
        num_plain_rounds=len(plain),
    )
