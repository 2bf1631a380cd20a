"""Decides in which rounds a self-drafting target drafts."""

from dataclasses import dataclass
from math import inf
from typing import Final, TypeAlias

from forerun.drafting.layer_skip.settings import TUNED
from forerun.drafting.layer_skip.skip_search import SkipSearch
from forerun.speculation.economy.alone import Alone

TIMED: Final = 2  # rounds left in a rest when one is timed: that round has neither the check nor probe rows


@dataclass(frozen=True, slots=True)
class Drafting:
    """A round with a proposal: draft passes grow the tree if `grows`, otherwise it is looked up in earlier text."""

    grows: bool


@dataclass(frozen=True, slots=True)
class Probing:
    """A plain round that the search uses while no request is waiting."""


@dataclass(frozen=True, slots=True)
class Resting:
    """One of several consecutive plain rounds. The last of them may contain probe rows.

    Args:
        rounds_left: rounds left, including this one.
    """

    rounds_left: int


RoundKind: TypeAlias = Drafting | Probing | Resting


class DraftingSchedule:
    """Decides for every round whether it drafts.

    Only one round of a rest is timed, and its time is used for all of them.

    Args:
        looks_up: propose looked-up text when draft passes would not pay off.
    """

    def __init__(self, looks_up: bool) -> None:
        self.choice: Alone | None = None  # None: a round always drafts
        self.kind: RoundKind = Probing()
        self.plain_round_s: float | None = None  # the fastest recent plain round
        self._timed_s: float | None = None
        self._looks_up = looks_up

    def begin(self, temperature: float) -> None:
        """Start a request and end any rest."""
        self.kind = Probing()
        if self.choice is not None:
            self.choice.begin(temperature)

    def next(self, search: SkipSearch, num_tokens: int) -> RoundKind:
        """The kind of the next round, at this text length."""
        kind = self.kind
        if isinstance(kind, Resting) and kind.rounds_left > 1:
            self.kind = Resting(kind.rounds_left - 1)
        else:
            self._end_rest(search)
            self.kind = self._choose(search, num_tokens)
        return self.kind

    @property
    def may_carry_rows(self) -> bool:
        """True if the search may add rows to the round's verification."""
        return not isinstance(self.kind, Resting) or self.kind.rounds_left == 1

    def take_time(self, seconds: float) -> None:
        """Record the time of the rest's timed round."""
        self._timed_s = seconds

    def _choose(self, search: SkipSearch, num_tokens: int) -> RoundKind:
        if self.choice is None or self.choice.should_draft():
            grows = search.is_worth_it(num_tokens)
            if grows or self._looks_up:
                return Drafting(grows)
        return Probing() if search.uses_every_round else Resting(TUNED.rest_rounds)

    def _end_rest(self, search: SkipSearch) -> None:
        """Record the time of a rest's rounds, if one of them was timed."""
        if self._timed_s is None:
            return
        num_rounds = TUNED.rest_rounds
        if self.choice is not None and not self.choice.should_draft():
            self.choice.measure(num_rounds, num_rounds * self._timed_s, num_rounds)
        search.take_time(num_rounds * self._timed_s)
        self.plain_round_s = min(self._timed_s, TUNED.plain_rise * (self.plain_round_s or inf))
        self._timed_s = None
