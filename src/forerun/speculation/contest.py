"""Which of several drafters writes fastest: each is tried, the fastest is used, the others are tried again at times.

No clock: times are passed in.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from forerun.speculation.payoff import FIRST_STRETCH, LONGEST_STRETCH, MARGIN, TRIAL, Speed

MEMORY: Final = 0.98  # factor on older rounds, per round: with fewer than some fifty, chance decides between drafters
KNOWN_TOKENS: Final = 16.0  # tokens that the speed kept from an earlier start counts as
FEWEST: Final = 2  # rounds of a trial after which it may end early
FADING: Final = 0.25  # factor on a drafter's record when it is tried again: it is of another place in the text
HOPELESS: Final = 1.5  # times the best drafter's seconds per token at which it does


class Contest:
    """Chooses a drafter for every round by seconds per token, at one class of temperatures.

    A drafter that is slower is tried again after 32, 64, ... 512 rounds of the fastest, and costs nothing meanwhile.

    Args:
        names: the drafters, the likeliest winner first.
        known: seconds per token of some of them, from an earlier start.
    """

    def __init__(self, names: Sequence[str], known: Mapping[str, float] | None = None) -> None:
        self._records = {name: Speed(MEMORY) for name in names}
        for name, seconds in (known or {}).items():
            if name in self._records:
                self._records[name].measure(KNOWN_TOKENS, KNOWN_TOKENS * seconds, KNOWN_TOKENS)
        self._stretch, self._left, self._num_played = FIRST_STRETCH, FIRST_STRETCH, 0
        self._last_tried, self._winner = names[0], self._fastest() or names[0]
        self._current = self._winner

    @property
    def current(self) -> str:
        """The drafter of the round that begins."""
        return self._current

    @property
    def winner(self) -> str:
        """The fastest drafter as far as is known."""
        return self._winner

    @property
    def is_trial(self) -> bool:
        """Whether a turn begins of a drafter that is not known to be the fastest."""
        return self._num_played == 0 and self._current != self._winner

    def speeds(self) -> dict[str, float]:
        """Seconds per token of the drafters that were tried."""
        return {name: speed for name, record in self._records.items() if (speed := record.seconds_per_token)}

    def measure(self, num_tokens: int, seconds: float) -> None:
        """Take a round of the current drafter."""
        self._records[self._current].measure(num_tokens, seconds)
        self._num_played += 1
        if self._is_turn_over():
            self._choose()

    def _is_turn_over(self) -> bool:
        if self._num_played >= TRIAL:
            return True
        best, own = self._records[self._winner], self._records[self._current]
        is_hopeless = own.seconds_per_token > HOPELESS * best.seconds_per_token > 0.0
        return self._current != self._winner and self._num_played >= FEWEST and is_hopeless

    def _choose(self) -> None:
        """At the end of a turn, name the fastest drafter and choose whose turn is next."""
        was_trial, self._num_played = self._current != self._winner, 0
        if not was_trial:
            self._left -= TRIAL
        fastest = self._fastest()
        assert fastest is not None, "a round was measured"
        records = self._records
        if records[self._winner].seconds_per_token > MARGIN * records[fastest].seconds_per_token:
            self._winner, self._stretch, self._left = fastest, FIRST_STRETCH, FIRST_STRETCH
        elif was_trial:
            self._left, self._stretch = self._stretch, min(2 * self._stretch, LONGEST_STRETCH)
        self._current = self._untried() or (self._next_challenger() if self._left <= 0 else self._winner)

    def _fastest(self) -> str | None:
        speeds = self.speeds()
        return min(speeds, key=speeds.__getitem__) if speeds else None

    def _untried(self) -> str | None:
        return next((name for name, record in self._records.items() if not record.seconds_per_token), None)

    def _next_challenger(self) -> str:
        """The drafters but the winner, in turn; the winner itself where it stands alone."""
        names = list(self._records)
        place = names.index(self._last_tried)
        turn = [name for name in (*names[place + 1 :], *names[: place + 1]) if name != self._winner]
        self._last_tried = turn[0] if turn else self._winner
        if turn:
            self._records[self._last_tried].fade(FADING)
        return self._last_tried
