"""Decides when a single drafter rests, that is, plays plain rounds itself because drafting does not pay.

Callers pass in times; no clock is read.
"""

from collections.abc import Callable
from math import inf
from typing import Final

from forerun.speculation.economy.choice import Chooser
from forerun.speculation.economy.costs import RoundCosts

ALONE: Final = "alone"
REST_ROUNDS: Final = 16  # consecutive plain rounds before the next check, which costs 1 % of a small model's round
TIMED: Final = 2  # rounds left in a rest when one is timed: that round has neither the check nor probe rows
PLAIN_RISE: Final = 1.1  # cap on a plain round's time relative to its recent time, since other load only adds time
BEGIN_MARGIN: Final = 1.03  # speed over plain decoding, by a pessimistic estimate, at which drafting begins
TRIAL_MARGIN: Final = 0.9  # the same by the mean for a trial; below 1, as drafts stop early where confidence is low
TRIAL_OVERHEAD: Final = 0.1  # limit for a trial on a round's time in addition to its passes, as a share of a pass


class RestRule:
    """Decides for every round whether it drafts.

    Plain rounds come in rests of `REST_ROUNDS`. Only one round of a rest is timed, and its time is used for all of
    them. Where a `Chooser` of several drafters would watch this one, it drafts instead.

    Args:
        looks_up: propose looked-up text when draft passes would not pay off.
    """

    def __init__(self, looks_up: bool) -> None:
        self._chooser: Chooser | None = None  # None: a round always drafts
        self._looks_up = looks_up
        self.drafts = self.grows = False  # this round has a proposal; draft passes grow it, else it is looked up
        self.rounds_left = 0  # of a rest, including this round; 0: this is no rest
        self.plain_round_s: float | None = None  # the fastest recent plain round

    def choose_by(self, costs: RoundCosts) -> None:
        """Draft only where it pays from now on, by these costs of the target's rounds."""
        self._chooser = Chooser((ALONE,), costs)

    def begin(self, temperature: float) -> None:
        """Begin an answer, and end any rest."""
        self.drafts = False
        self.rounds_left = 0
        if self._chooser is not None:
            self._chooser.begin(temperature)

    def should_draft(self) -> bool:
        """Whether drafted rounds paid, or must be tried."""
        if self._chooser is None:
            return True
        turn = self._chooser.turn
        return turn.drafter is not None or turn.watched is not None

    def next(self, may_pay: Callable[[], bool], *, may_rest: bool) -> None:
        """Begin a round.

        Args:
            may_pay: whether a draft of this round is expected to pay.
            may_rest: plain rounds need no check.
        """
        if self.rounds_left > 1:
            self.rounds_left -= 1
            return
        should_draft = self.should_draft()
        self.grows = should_draft and may_pay()
        self.drafts = self.grows or (should_draft and self._looks_up)
        self.rounds_left = 0 if self.drafts or not may_rest else REST_ROUNDS

    @property
    def is_checked(self) -> bool:
        """False in a rest's rounds after the first."""
        return self.rounds_left in (0, REST_ROUNDS)

    @property
    def may_carry_rows(self) -> bool:
        """True if rows may be added to the round's verification."""
        return self.rounds_left <= 1

    @property
    def is_timed(self) -> bool:
        """True in the round of a rest that is timed."""
        return self.rounds_left == TIMED

    def measure(self, num_tokens: int, seconds: float) -> None:
        """Record a drafted round."""
        if self._chooser is not None:
            self._chooser.measure_whole(num_tokens, seconds)

    def measure_rest(self, round_s: float) -> float:
        """Record a rest by the time of its timed round; returns the rest's seconds."""
        rest_s = REST_ROUNDS * round_s
        if self._chooser is not None and not self.should_draft():
            self._chooser.measure_whole(REST_ROUNDS, rest_s, REST_ROUNDS)
        self.plain_round_s = min(round_s, PLAIN_RISE * (self.plain_round_s or inf))
        return rest_s


def is_worth_beginning(speed: float, plain_speed: float) -> bool:
    """Whether to begin to draft, by the tokens per second of a pessimistic estimate; it ends below plain decoding's."""
    return speed > BEGIN_MARGIN * plain_speed


def is_worth_a_trial(speed: float, plain_speed: float, overhead_s: float, pass_s: float) -> bool:
    """Whether to try a draft that is expected to give `speed` tokens per second.

    Args:
        overhead_s: seconds of a round in addition to its passes.
        pass_s: seconds of a plain pass.
    """
    return overhead_s < TRIAL_OVERHEAD * pass_s and speed > TRIAL_MARGIN * plain_speed
