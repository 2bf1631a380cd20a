"""The one place that decides a round: who drafts, or nobody, with how many rows, and who is only watched.

Callers pass in times; no clock is read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, fsum, inf
from typing import Final, TypeAlias

from forerun.core.pace import Pace
from forerun.speculation.referee.budget import FREE, DraftCosts, ProposedTree, RowBudget
from forerun.speculation.referee.costs import RoundCosts, RunningMean, blend
from forerun.speculation.referee.depths import DepthRule
from forerun.speculation.referee.plain_times import PlainTimes
from forerun.speculation.referee.records import (
    STALL,
    TEMPERATURE_CLASSES,
    DraftRecord,
    ProposalMeans,
    TemperatureClass,
    class_of,
)
from forerun.speculation.referee.time_share import TimeShare
from forerun.speculation.tree import TokenTree

WATCHED: Final = 0.01  # share of all time for guesses that are only compared with the text
FIRST_WATCHED: Final = 0.03  # the same during the trials, which may lose more
LOSS: Final = 0.015  # share of its time that an answer may lose against plain decoding; the documented limit is 0.02
FIRST_LOSS: Final = 0.04  # the same for an answer of the trials; the documented limit is 0.05
TRIALS: Final = 4  # the first answers in a class of temperatures; they end when every drafter has been measured
TRIAL: Final = 16  # length of the shortest answer that counts as a trial, in the time of plain rounds
SHORT: Final = 60  # tokens of the shortest answer for which the limit holds
MARGIN: Final = 1.02  # factor by which a drafter must be faster than another, or than plain rounds, to replace it
SAVED: Final = 64.0  # limit, in plain rounds, on the time saved up for watching: reading a prompt takes many at once
RISK: Final = 0.3  # share of an answer's remaining loss limit that one round may lose on average
MOST_RISK: Final = 0.6  # the same for a round whose nodes are all rejected, so that one bad round leaves room for more
FREE_TIME: Final = 2e-3  # in plain rounds: shorter proposals count as free
PLAIN_EVERY: Final = 64  # rounds after which a plain one is due, to keep its measured time up to date
NOTHING_SAVED: Final[Mapping[str, float]] = {}
NO_COSTS: Final[Mapping[str, DraftCosts]] = {}
Speeds: TypeAlias = Mapping[TemperatureClass, Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTurn:
    """The plan of a round.

    Args:
        drafter: the drafter; None: a plain round.
        max_rows: limit on the rows of its tree, which `Referee.cut` may lower.
        watched: the drafter that makes a guess only to be compared with the text to come; None: none.
    """

    drafter: str | None = None
    max_rows: int = 1
    watched: str | None = None


class Referee:
    """Gives every round to the drafter with the most tokens per second, or to plain decoding.

    It holds the one record of what a round of so many rows costs (`costs`), the one of how good each drafter is, and
    the share of time for experiments. Drafters ask their `budget` what is worth proposing; `cut` has the last word.

    A drafter can be measured without verifying its guesses: it is watched, so it guesses in another's round, and the
    guess is compared with the text that follows, in `WATCHED` of all time. One that was never tried drafts at once.

    A drafter that pays on average may lose in one answer, so the loss of each answer against plain decoding is limited:
    the time of a round's rows, times the chance that all are rejected, stays within a share of the remaining limit.

    Args:
        widths: the most rows of each drafter's proposals, the one most likely to win first; empty: rounds are plain.
        costs: costs of the target's rounds; None: the first drafter drafts in every round, with its full widths.
        own: what the drafters' own passes cost.
        drafts_always: the first drafter drafts in every round, because its proposals take no time of the target's
            process; only the rows are chosen.
        known: speeds measured before the last start, in tokens in the time of a plain round.
        saved_s: time that was left for watching before the last start, in seconds.
        reading_s: seconds that a drafter would need before its next proposal to read text that is new to it.
    """

    def __init__(
        self,
        widths: Mapping[str, int],
        costs: RoundCosts | None = None,
        *,
        own: Mapping[str, DraftCosts] = NO_COSTS,
        drafts_always: bool = False,
        known: Speeds | None = None,
        saved_s: Mapping[str, float] = NOTHING_SAVED,
        reading_s: Callable[[str], float] = lambda name: 0.0,
    ) -> None:
        widest = max(widths.values(), default=1)
        names = tuple(widths)
        self.costs = RoundCosts(Pace(steps=((widest, 1.0),))) if costs is None else costs
        self.budgets = {name: RowBudget(width, costs, own.get(name, FREE)) for name, width in widths.items()}
        self.prediction_budget = RowBudget(widest, costs)
        self.plain_times: PlainTimes | None = None  # to compare with plain decoding; None: there is no comparison
        self._depths: DepthRule | None = None  # of recorded rounds
        self._names = names
        self._is_fixed = costs is None
        self._drafts_always = drafts_always or costs is None
        self._reading_s = reading_s
        known = known or {}
        self._trials = {kind: 0 if known.get(kind) else TRIALS for kind in TEMPERATURE_CLASSES}
        self._records = {
            kind: {name: DraftRecord(known.get(kind, {}).get(name)) for name in names} for kind in TEMPERATURE_CLASSES
        }
        self._asked = list(names)  # order in which to watch them, the least recently watched first
        self._proposals = {name: ProposalMeans() for name in names}
        self._proposal = TokenTree(0)  # the last one
        self._shares = {name: TimeShare(FIRST_WATCHED, SAVED * self.costs.plain_s) for name in names}
        for name, share in self._shares.items():
            share.spend(-min(saved_s.get(name, 0.0), SAVED * self.costs.plain_s))
        self._kind: TemperatureClass = "greedy"
        self._now = self._records[self._kind]
        self.turn = DraftTurn()
        self._left_out = set[str]()
        self._lost_s = self._passed_s = self._prompt_s = 0.0
        self._drafted_last: str | None = None  # the drafter of the previous round
        self._room_s = inf  # the time that the answer may still lose
        self._num_since_plain = 0
        self._readings_s = dict[str, float]()
        self._num_tokens = 0  # of this answer
        self._usual_tokens = RunningMean()  # of earlier ones, each at most SHORT
        self._drafted_tokens = 0.0  # per round that a drafter may draft, a running mean

    def alone(self, name: str, reading_s: Callable[[str], float]) -> "Referee":
        """A referee of one of these drafters, with the same costs and its known speed; `reading_s` as at the start."""
        if self._is_fixed:
            return Referee({name: self.budgets[name].verify_width})
        known = {kind: {name: speeds[name]} for kind, speeds in self.speeds().items() if name in speeds}
        widths = {name: self.budgets[name].verify_width}
        alone = Referee(widths, self.costs, known=known, reading_s=reading_s)
        alone.budgets = {name: self.budgets[name]}
        return alone

    def start_answer(self, temperature: float) -> None:
        """Start an answer."""
        self._trials[self._kind] -= self._passed_s > TRIAL * self.costs.plain_s
        if self._num_tokens:
            self._usual_tokens.add(min(SHORT, self._num_tokens))
        self._kind = class_of(temperature)
        self._num_tokens = 0
        self._now = self._records[self._kind]
        for record in self._now.values():
            record.watch(None)
        self._lost_s = self._passed_s = self._prompt_s = 0.0
        self._num_since_plain = 0
        self._drafted_last = None
        self._left_out = set()
        self.turn = DraftTurn()
        self.turn = self._next_turn()

    def leave_out(self, name: str) -> None:
        """Give this drafter no more rounds of this answer."""
        self._left_out.add(name)
        if name in (self.turn.drafter, self.turn.watched):
            self.turn = self._next_turn()

    def depth(self) -> int:
        """The depth of the next recorded round."""
        assert self._depths is not None, "its rounds are not recorded"
        return self._depths.depth()

    def measure_depth(self, depth: int, num_accepted: int, seconds: float) -> None:
        """Record a recorded round of this depth."""
        assert self._depths is not None, "its rounds are not recorded"
        self._depths.measure(depth, num_accepted, seconds)

    @property
    def weighs_costs(self) -> bool:
        """True if drafting has to pay, by measured costs."""
        return not self._drafts_always

    @property
    def is_stretch_due(self) -> bool:
        """Whether a short run of plain rounds is to be timed now, for the reported speed-up."""
        return self.plain_times is not None and self.plain_times.is_due

    def read_prompt(self, seconds: float) -> None:
        """Add the time of reading the prompt to the answer's time, of which a share may be lost."""
        self._prompt_s = seconds

    def speeds(self) -> Speeds:
        """Speeds of the drafters with enough rounds, in tokens in the time of a plain round."""
        found = {
            kind: {name: record.speed for name, record in records.items() if record.is_known}
            for kind, records in self._records.items()
        }
        return {kind: speeds for kind, speeds in found.items() if speeds}

    @property
    def _is_trial(self) -> bool:
        return self._trials[self._kind] > 0 and any(record.may_reach(MARGIN) for record in self._now.values())

    @property
    def saved_s(self) -> Mapping[str, float]:
        """Seconds of watching that are left to each drafter, without those still to be earned."""
        return {name: share.saved_s for name, share in self._shares.items() if share.saved_s > 0.0}

    def may_read(self, name: str) -> bool:
        """Whether a drafter should read the prompt while the target does: if it drafts next, or has time left to be
        watched."""
        if self._drafts_always or name == self.turn.drafter:
            self._readings_s[name] = 0.0  # it will have read when it proposes
            return True
        share = self._shares[name]
        reading_s = 0.0 if self._is_trial else self._reading_s(name)
        if reading_s > max(0.0, share.saved_s):
            return False
        share.spend(reading_s)
        return True

    def budget(self, name: str) -> RowBudget:
        """What this drafter may propose now: the rows of its turn, or all if it is only watched."""
        budget = self.budgets[name]
        budget.start_round(self.turn.max_rows if name == self.turn.drafter else budget.verify_width)
        return budget

    def watch(self, proposal: ProposedTree, proposal_s: float) -> None:
        """Record the guess of this turn's watched drafter, and the seconds that it took."""
        name = self.turn.watched
        assert name is not None, "a guess although no drafter is watched"
        guess = self.budgets[name].cut(proposal)
        spent_s, usual_s = self._proposals[name].time(proposal_s, self._readings_s.get(name, 0.0))
        self._shares[name].spend(spent_s)
        self._lost_s += spent_s
        self._now[name].watch(guess, (usual_s + self.costs.step_s(len(guess))) / self.costs.plain_s)

    def cut(self, proposal: ProposedTree) -> TokenTree:
        """The nodes of this turn's proposal to verify: as many as pay, within the time that the answer may lose."""
        name = self.turn.drafter
        assert name is not None, "a proposal in a plain round"
        tree = self.budgets[name].cut(proposal)
        if len(tree) == 1 or self._drafts_always:
            return tree
        self._proposal = tree
        hit = self._now[name].chance_of_first(tree)
        self._proposals[name].hits.add(hit)
        max_rows = min(self._rows_within(name, 1.0 - hit), self.turn.max_rows)
        return tree if len(tree) <= max_rows else tree.select(tree.best(max_rows))

    def cut_prediction(self, proposal: ProposedTree, *, is_forced: bool = False) -> TokenTree | None:
        """The nodes of a predicted text to verify; None if a drafter is expected to have more tokens accepted.

        Args:
            is_forced: a grammar forces these tokens, so all of them are verified.
        """
        budget = self.prediction_budget
        budget.start_round(budget.verify_width)
        tree = proposal.tree if is_forced else budget.cut(proposal)
        if len(tree) == 1 or fsum(map(exp, tree.log_probs)) < self._drafted_tokens:
            return None
        return tree

    def told_prediction(self, token_ids: Sequence[int]) -> None:
        """Record the tokens of a round that verified predicted text."""
        self.prediction_budget.end_round(len(token_ids) - 1)
        self.told_text(token_ids)

    def measure(
        self, *, num_rows: int, token_ids: Sequence[int], proposal_s: float, round_s: float, num_rounds: int = 1
    ) -> None:
        """Record the round of this turn, or several plain ones.

        Args:
            num_rows: rows of its tree.
            token_ids: tokens that it emitted.
            proposal_s: seconds for the proposal.
            round_s: seconds of the rest of a round.
        """
        costs = self.costs
        name = self.turn.drafter
        self._drafted_tokens = blend(self._drafted_tokens, len(token_ids) / num_rounds)
        if name is not None:
            self.budgets[name].end_round(len(token_ids) - 1)
        if self._drafts_always:
            if not self._is_fixed:
                costs.measure(num_rows, round_s, num_rounds)
            return
        after = self._drafted_last
        self._drafted_last = name if num_rows > 1 else None
        if name is None and after is not None and self._num_since_plain < PLAIN_EVERY:
            self._charge_for(after, num_rounds, round_s)
            round_s = min(round_s, costs.plain_s)
        costs.measure(num_rows, round_s, num_rounds)
        seconds = costs.step_s(num_rows)
        self.told_text(token_ids)
        if name is None:
            self._pass_by(num_rounds * seconds)
        else:
            spent_s, usual_s = self._proposals[name].time(proposal_s, self._readings_s.get(name, 0.0))
            self._proposals[name].rows.add(num_rows)
            self._lost_s += spent_s - usual_s
            if num_rows > 1:
                self._now[name].prove(self._proposal, token_ids[0])
            self._take(name, len(token_ids), seconds + usual_s)
        self._num_since_plain = 0 if num_rows == 1 else self._num_since_plain + 1
        self.turn = self._next_turn()

    @classmethod
    def of_recorded_rounds(cls, round_s: Sequence[float]) -> "Referee":
        """The referee of a device whose rounds are recorded with a fixed depth, see `DepthRule`.

        Args:
            round_s: initial seconds of a round by its depth, from 0.
        """
        referee = cls({})
        referee._depths = DepthRule(round_s)
        return referee

    def _charge_for(self, drafter: str, num_rounds: int, round_s: float) -> None:
        """Charge a drafter for the delay of plain rounds after its own: the CPU stays slower for a while after wide
        passes, and its caches hold other code and data."""
        plain_s = self.costs.plain_s
        extra_s = num_rounds * max(0.0, min(round_s, STALL * plain_s) - plain_s)
        self._now[drafter].burden(extra_s / plain_s)
        self._lost_s += extra_s

    def told_text(self, token_ids: Sequence[int]) -> None:
        """Compare the guesses of watched drafters with new text."""
        self._num_tokens += len(token_ids)
        for record in self._now.values():
            record.told(token_ids)

    def _take(self, name: str, num_tokens: int, seconds: float) -> None:
        plain_s = self.costs.plain_s
        self._now[name].measure(num_tokens, seconds / plain_s)
        self._lost_s += seconds - num_tokens * plain_s
        self._pass_by(seconds)

    def _pass_by(self, seconds: float) -> None:
        self._passed_s += seconds
        dear = [name for name in self._names if not self._costs_nothing(name)]
        for name in dear:
            self._shares[name].pass_by(seconds, (1.0 if self._is_trial else WATCHED / FIRST_WATCHED) / len(dear))

    def _costs_nothing(self, name: str) -> bool:
        return 0.0 < self._proposals[name].seconds.value < FREE_TIME * self.costs.plain_s

    def _next_turn(self) -> DraftTurn:
        if self._drafts_always or not self._names:
            first = next(iter(self._names), None)
            if first is None or first in self._left_out:
                return DraftTurn()
            return DraftTurn(drafter=first, max_rows=self.budgets[first].verify_width)
        answer_s = self._prompt_s + max(SHORT * self.costs.plain_s, self._passed_s)
        limit_s = answer_s * (FIRST_LOSS if self._is_trial else LOSS)
        room_s = limit_s - self._lost_s
        self._readings_s = dict[str, float]()
        self._room_s = room_s
        drafter = self._best(room_s)
        max_rows = 1
        if drafter is not None:
            chance_of_loss = 0.0 if self._costs_nothing(drafter) else 1.0 - self._proposals[drafter].hits.value
            max_rows = self._rows_within(drafter, chance_of_loss)
        if max_rows == 1 or self._is_plain_due(drafter) or (self._is_trial and not self.costs.knows_plain):
            drafter = None
            max_rows = 1
        watched = self._to_watch(drafter, room_s - 0.5 * limit_s)
        return DraftTurn(drafter=drafter, max_rows=max_rows, watched=watched)

    def _rows_within(self, name: str, chance_of_loss: float) -> int:
        risk = min(MOST_RISK, RISK / max(1e-3, chance_of_loss))
        means = self._proposals[name]
        return self.costs.rows_within(risk * self._room_s, means.seconds.value, means.rows.value)

    def _best(self, room_s: float) -> str | None:
        """The fastest drafter, if it is faster than plain decoding; one that was never tried goes first."""
        current = self.turn.drafter
        is_trial = self._is_trial
        speeds = {
            name: inf
            if not record.is_known
            else record.hoped_speed
            if is_trial
            else record.speed * (MARGIN if name == current else 1.0)
            for name, record in self._now.items()
        }
        for name in sorted(self._names, key=speeds.__getitem__, reverse=True):
            if name in self._left_out:
                continue
            if speeds[name] <= MARGIN:
                break
            if self._will_read(name) <= max(room_s, 0.0 if self._passed_s else self._gain_s(speeds[name])):
                return name
        return None

    def _gain_s(self, speed: float) -> float:
        """Seconds that a drafter of this speed is expected to save in an answer; 0 if the speed is not known."""
        plain_s = (self._usual_tokens.value or SHORT) * self.costs.plain_s
        return plain_s * (1.0 - 1.0 / speed) if speed < inf else 0.0

    def _is_plain_due(self, drafter: str | None) -> bool:
        if drafter is None or self._num_since_plain < PLAIN_EVERY:
            return False
        loss_s = (self._now[drafter].speed - 1.0) * self.costs.plain_s
        share = self._shares[drafter]
        if loss_s > share.saved_s:
            return False
        share.spend(loss_s)
        return True

    def _to_watch(self, drafter: str | None, room_s: float) -> str | None:
        """The drafter to watch: the least recently watched one that has enough time left, if any."""
        for name in self._asked:
            if name == drafter or name in self._left_out or self._now[name].is_watched:
                continue
            saved_s = inf if self._costs_nothing(name) else self._shares[name].saved_s
            if self._will_read(name) + self._proposals[name].seconds.value <= min(room_s, saved_s):
                self._asked.remove(name)
                self._asked.append(name)
                return name
        return None

    def _will_read(self, name: str) -> float:
        """Seconds that this drafter would need in this turn to read new text."""
        seconds = self._readings_s[name] = self._reading_s(name)
        return seconds
