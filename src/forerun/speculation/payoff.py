"""Whether drafting pays at all: tokens per second with it and without, as they turn out. No clock: times are told."""

from typing import Final

FORGETTING: Final = 0.95  # what a round leaves of the weight of those before it
FIRST_ROUNDS: Final = 12  # rounds after which either way is judged
MARGIN: Final = 1.03  # by so much the other way must be better: two equal ways would change places for ever
FIRST_STRETCH: Final = 32  # rounds without drafting before it is tried again
LONGEST_STRETCH: Final = 512
TRIAL: Final = 6  # rounds of such a trial


class Payoff:
    """Chooses round by round between drafting and plain rounds, by seconds per token of both.

    Plain rounds are tried only where drafting writes more slowly than passes alone would: a draft that pays is never
    interrupted. Where it does not pay, it is tried again in ever longer intervals.

    Args:
        pass_s: seconds of a pass of one row, the least a plain token takes.
    """

    def __init__(self, pass_s: float) -> None:
        self._pass_s = pass_s
        self._drafted, self._plain = Speed(), Speed()
        self._is_drafting, self._left = True, FIRST_ROUNDS
        self._stretch = FIRST_STRETCH

    def should_draft(self) -> bool:
        return self._is_drafting

    def see_verification(self, seconds: float) -> None:
        """A verification took so long, and a pass of one row no longer. What was measured before may have been measured
        while the machine was busy."""
        self._pass_s = min(self._pass_s, seconds)

    def measure(self, num_tokens: int, seconds: float, num_rounds: int = 1) -> None:
        """Take a round of the kind that `should_draft` asked for, or some of them together."""
        speed = self._drafted if self._is_drafting else self._plain
        speed.measure(num_tokens, seconds)
        self._left -= num_rounds
        if self._left <= 0:
            self._judge()

    def _judge(self) -> None:
        """At the end of a stretch of rounds of one kind, choose the kind of the next and how long it lasts."""
        if not self._is_drafting:
            self._is_drafting, self._left = True, TRIAL
            self._drafted = Speed()  # what it was worth before says little about the text here
        elif self._pays():
            self._left, self._stretch = 1, FIRST_STRETCH
        else:
            self._is_drafting = False
            self._left = self._stretch if self._plain.seconds_per_token else TRIAL
            self._stretch = min(2 * self._stretch, LONGEST_STRETCH) if self._plain.seconds_per_token else FIRST_STRETCH

    def _pays(self) -> bool:
        plain_s = self._plain.seconds_per_token or self._pass_s
        return self._drafted.seconds_per_token < MARGIN * plain_s


class Speed:
    """Seconds per token of recent rounds of one kind."""

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    @property
    def seconds_per_token(self) -> float:
        """0 before the first round."""
        return self._seconds / self._tokens if self._tokens else 0.0

    def measure(self, num_tokens: int, seconds: float) -> None:
        self._tokens = FORGETTING * self._tokens + num_tokens
        self._seconds = FORGETTING * self._seconds + seconds
