"""Times plain decoding within a drafted text, and the speed-up of drafting over it.

These times stay apart from `RoundCosts`: they are of plain decoding on all cores, for a reported ratio with an
interval, and not of this engine's own rounds. The referee says when one is due.

Callers pass in times; no clock is read.
"""

from collections import deque
from collections.abc import Sequence
from itertools import takewhile
from math import sqrt
from statistics import quantiles
from typing import Final

from forerun.core.steps import Speedup
from forerun.speculation.referee.time_share import TimeShare

WARM_UP_S: Final = 2e-3  # of plain rounds that are not counted, as the CPU's caches still hold the drafter's data
COUNTED: Final = 3  # rounds counted in a stretch among drafted ones
SHARE: Final = 0.03  # share of the time spent on such stretches; their tokens are part of the text
ENOUGH: Final = 16  # plain rounds after a text, if they also take ENOUGH_S
ENOUGH_S: Final = 0.02  # seconds of plain rounds after a text, if there are also ENOUGH of them
FEWEST: Final = 6  # fewest plain rounds for an estimate
FEWEST_TOKENS: Final = 24  # shortest text with a reported speed-up
MEDIAN_ERROR: Final = 0.93  # standard error of a normal median of n values, in interquartile ranges over sqrt(n)
WIDEST: Final = 0.10  # largest relative half-width of a reported interval
KEPT: Final = 512  # limit on stored rounds, the latest of a text


class PlainTimes:
    """The timed plain rounds, and whether more are due.

    Rounds after a text have more context than those in its middle. With a few million parameters, a hundred more tokens
    of context take a few percent more time, which is subtracted.

    Args:
        context_s: added seconds of a round per token of context.
    """

    def __init__(self, context_s: float = 0.0) -> None:
        self._context_s = context_s
        self._timed: deque[tuple[float, float]] = deque(maxlen=KEPT)  # end of each, time less the context's
        self._share: TimeShare | None = None  # None before the first round

    def pass_by(self, seconds: float) -> None:
        """Record a round's time. The first gives an estimate of a stretch's time, which must be saved up first."""
        if self._share is None:
            self._share = TimeShare(SHARE, WARM_UP_S)
            self._share.spend(WARM_UP_S + (1 + COUNTED) * seconds)
        self._share.pass_by(seconds)

    @property
    def is_due(self) -> bool:
        """True if the share of the time allows another stretch of plain rounds."""
        return self._share is not None and self._share.is_open

    def spend(self, seconds: float) -> None:
        """Record a stretch's total time, including its overhead."""
        assert self._share is not None, "a stretch before any round"
        self._share.spend(seconds)

    def told(self, ended_at_s: float, seconds: float, context: int) -> None:
        """Record a counted plain round's time and context length."""
        self._timed.append((ended_at_s, seconds - self._context_s * context))

    def since(self, began_at_s: float, context: float) -> list[float]:
        """Seconds of the plain rounds since then, latest first, adjusted to this context length."""
        late = takewhile(lambda timed: timed[0] > began_at_s, reversed(self._timed))
        return [seconds + self._context_s * context for _, seconds in late]

    def has_enough(self, began_at_s: float) -> bool:
        """Whether the plain rounds since then suffice to estimate plain decoding."""
        timed = self.since(began_at_s, 0)
        return len(timed) >= ENOUGH and sum(timed) >= ENOUGH_S


class Stretch:
    """Plain rounds in a row. The first ones are not counted: a round of a quarter of a millisecond takes a fifth longer
    until the CPU's caches hold plain decoding's data."""

    def __init__(self, times: PlainTimes) -> None:
        self._times = times
        self._played_s = 0.0
        self.num_counted = 0

    def told(self, ended_at_s: float, seconds: float, context: int) -> None:
        """Record a timed round."""
        if self._played_s >= WARM_UP_S:
            self._times.told(ended_at_s, seconds, context)
            self.num_counted += 1
        self._played_s += seconds


def speedup_of(num_tokens: int, num_rounds: int, seconds: float, plain: Sequence[float]) -> Speedup | None:
    """The speed-up of a text over plain rounds timed at about the same time; None if the estimate is too uncertain.

    A round cannot be quicker than a plain one, so the speed-up cannot exceed the tokens per round: an estimate above
    that is capped if noise explains the excess, else discarded. The median of the plain rounds is used, because other
    load on the machine hardly changes it.

    Args:
        num_tokens, num_rounds, seconds: totals of the text.
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
