"""What plain decoding takes while a drafter writes: when to time it, and what drafting gains over it.

No clock: times are told.
"""

from collections import deque
from collections.abc import Sequence
from itertools import takewhile
from math import sqrt
from statistics import quantiles
from typing import Final

from forerun.core.steps import Speedup
from forerun.speculation.time_share import TimeShare

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
        self._share: TimeShare | None = None  # None: no round went by

    def pass_by(self, seconds: float) -> None:
        """A round took so long. The first one tells what a stretch will take, which is to be earned beforehand."""
        if self._share is None:
            self._share = TimeShare(SHARE, WARM_UP_S)
            self._share.spend(WARM_UP_S + (1 + COUNTED) * seconds)
        self._share.pass_by(seconds)

    @property
    def is_due(self) -> bool:
        """True where the share of the time allows another stretch of plain rounds."""
        return self._share is not None and self._share.is_open

    def spend(self, seconds: float) -> None:
        """A stretch has taken so long, with everything that it brought along."""
        assert self._share is not None, "a stretch before any round"
        self._share.spend(seconds)

    def note(self, ended_at_s: float, seconds: float, context: int) -> None:
        """A plain round was timed that counts, with so many tokens before it."""
        self._timed.append((ended_at_s, seconds - self._context_s * context))

    def since(self, began_at_s: float, context: float) -> list[float]:
        """Seconds of the plain rounds since then, latest first, as they would be with so many tokens before them."""
        late = takewhile(lambda timed: timed[0] > began_at_s, reversed(self._timed))
        return [seconds + self._context_s * context for _, seconds in late]

    def has_enough(self, began_at_s: float) -> bool:
        """Whether the plain rounds since then tell what plain decoding takes."""
        timed = self.since(began_at_s, 0)
        return len(timed) >= ENOUGH and sum(timed) >= ENOUGH_S


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
