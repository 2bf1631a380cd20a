"""Which sublayers a draft by the target itself skips: learnt from rows that ride along in verification passes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from forerun.core.sublayers import SkipSet, every_other_layer
from forerun.drafting.layer_skip.candidates import SkipCandidates
from forerun.drafting.layer_skip.drift import DriftWatch, RunningShare
from forerun.drafting.layer_skip.named_set import NamedSet
from forerun.drafting.layer_skip.penalties import ROWS_PER_EVALUATION, DamageModel
from forerun.drafting.layer_skip.set_choice import Economy
from forerun.drafting.layer_skip.set_pool import FEWEST_ROWS, PooledSet, SkipPool
from forerun.drafting.layer_skip.settling import Settling

CAUTION: Final = 1.0  # deviations below its mean at which what is not in use is judged
MARGIN: Final = 1.005  # by so much a challenger must be faster
JUDGED_EVERY: Final = 32.0  # rows
ALIKE: Final = 48.0  # rows of one set that say as much about other sets as all that follow
REQUEST_ROWS: Final = 8.0  # at which the best of the pool are scored when a request begins
NUM_GREETED: Final = 4  # that many of them
FORGOTTEN: Final = 0.95  # of what was learnt of damages, when the text turns out to be another
AGEING: Final = 0.001  # of what was seen of each set, given up with every evaluation: texts change unnoticed too
POLICY_ROWS: Final = 64.0  # of a set's record that its drafts are first held against
KNOWN_ROWS: Final = 256.0  # that the record of an earlier session counts as at most
RECENT_ROWS: Final = 512.0  # by which the set in use is said to do well or badly
BEGIN_MARGIN: Final = 1.03  # by so much drafting must be faster than plain decoding to begin
CONTEXT_STEP: Final = 64  # tokens by which a context must grow before it is worth a new calculation
LONGEST_HISTORY: Final = 512

HistoryPoint = tuple[int, float, int, float]  # evaluations, chance, sublayers skipped, tokens per second


class GatedSearch:
    """Learns damages, tries the sets they point at beside the one in use, and changes only for what is surely faster.

    One search serves all requests of an engine. It draws from a generator of its own.

    Source: SWIFT (arXiv 2410.06916) tries random sets and keeps the best score seen, which is mostly luck.

    Args:
        num_layers: of the target, at least 3.
        economy: what drafting costs and brings on this machine.
        seed: of its random choices.
        known: sets of earlier sessions with what they were worth.
        num_skipped: how many sublayers each set skips; None: as many as pay.
    """

    def __init__(
        self,
        num_layers: int,
        economy: Economy,
        *,
        seed: int = 0,
        known: Sequence[NamedSet] = (),
        num_skipped: int | None = None,
    ) -> None:
        assert num_layers >= 3, "only the layers between the first and the last can be skipped"
        self._context = economy.costs.context
        self._model = DamageModel(num_layers)
        choice = economy.best_set(self._model.intercept, self._model.damages, self._context, num_skipped)
        first = [believed(one) for one in known] or [NamedSet(name="prior", skipped=choice)]
        self._pool = SkipPool(self._model, economy, first[0])
        for named in (*first[1:], NamedSet(name="every other layer", skipped=every_other_layer(num_layers))):
            self._pool.add(named, self._context)
        self._pool.refresh()
        if known:
            self._pool.incumbent = self._pool.ranked(self._context, -CAUTION)[0]
        rng = np.random.default_rng(seed)
        self._candidates = SkipCandidates(num_layers, self._model, self._pool, rng, num_skipped)
        self._settling = Settling()
        self._num_rows = self._judged_at = 0.0
        self._num_changes = 0  # of anything an answer depends on
        self._answer: tuple[int, int, bool] = (-1, -1, False)
        self._meet_incumbent()
        for member in self._pool:
            member.num_due = max(0.0, FEWEST_ROWS - member.num_rows)
        self.history: list[HistoryPoint] = []
        self._history_step = 1

    @property
    def skipped(self) -> SkipSet:
        """The set in use."""
        return self._pool.incumbent.skipped

    @property
    def economy(self) -> Economy:
        """What drafting is reckoned to cost and to bring."""
        return self._pool.economy

    @property
    def is_open(self) -> bool:
        """Whether better sets are still being found."""
        return self._settling.is_open

    @property
    def share(self) -> float:
        """Of the evaluation rows that a pass could carry, how many are wanted."""
        return 1.0 if any(member.num_due for member in self._pool) else self._settling.share

    @property
    def num_evaluations(self) -> int:
        """Windows of 32 rows scored so far."""
        return int(self._num_rows) // ROWS_PER_EVALUATION

    @property
    def num_reopened(self) -> int:
        """How often the text turned out to be another."""
        return self._settling.num_reopened

    def begin_request(self) -> None:
        """A new text begins: the best of the pool are scored first, since one of them may suit it better."""
        for member in self._pool.ranked(self._context, 0.0)[:NUM_GREETED]:
            member.num_due = max(member.num_due, REQUEST_ROWS)

    def reckon_with(self, round_s: float, expansion_s: float, plain_s: float = 0.0) -> None:
        """Take what rounds, drafted tokens and plain rounds were measured to cost beyond their passes, in seconds."""
        self._pool.economy = replace(self._pool.economy, round_s=round_s, expansion_s=expansion_s, plain_s=plain_s)
        self._num_changes += 1

    def candidates(self, count: int, context: int) -> list[SkipSet]:
        """At most so many different sets to score next, all at the same positions."""
        self._context = context
        return self._candidates.next(count, context, self._num_rows) if count > 0 else []

    def record(self, skipped: SkipSet, num_hits: float, num_rows: float, *, is_on_policy: bool = False) -> None:
        """Take a portion of evidence.

        Args:
            num_hits: of `num_rows` positions, those where the set's guess was the text's token.
            is_on_policy: these are guesses of a draft in use. They tell how well that goes, but they lie where the
                draft led, so that sets are not compared by them.
        """
        if num_rows <= 0:
            return
        self._num_changes += 1
        member = self._pool.find(skipped)
        if not is_on_policy:
            self._record_scores(skipped, member, num_hits, num_rows)
        if member is self._pool.incumbent:
            self._recent.record(num_hits, num_rows)
            watch = self._policy_watch if is_on_policy else self._watch
            watch.record(num_hits, num_rows)
            if watch.has_fallen():
                self._reopen()
        if self._num_rows >= self._judged_at + JUDGED_EVERY:
            self._judge()

    def chance(self) -> float:
        """That a guess of the set in use is right, by how it has done lately."""
        incumbent, recent = self._pool.incumbent, self._recent
        return (recent.num_hits + incumbent.prior_hits) / (recent.num_rows + incumbent.prior_rows)

    def speed(self, context: int) -> float:
        """Expected tokens per second of drafting with the set in use."""
        return self._pool.economy.speed(self.chance(), self.skipped, context)

    def is_worth_it(self, context: int) -> bool:
        """Whether drafting surely beats plain decoding; once it does, until it is expected not to."""
        place, num_changes, was_worth_it = self._answer
        if (place, num_changes) == (context // CONTEXT_STEP, self._num_changes):
            return was_worth_it
        plain = self._pool.economy.plain_speed()
        if was_worth_it:
            is_worth_it = self.speed(context) > plain
        else:
            chance = max(0.0, self.chance() - CAUTION * self._pool.incumbent.deviation())
            is_worth_it = self._pool.economy.speed(chance, self.skipped, context) > BEGIN_MARGIN * plain
        self._answer = (context // CONTEXT_STEP, self._num_changes, is_worth_it)
        return is_worth_it

    def known(self) -> tuple[NamedSet, ...]:
        """What to hand on to a later search: the pool, the set in use first."""
        return self._pool.known()

    def _record_scores(self, skipped: SkipSet, member: PooledSet | None, num_hits: float, num_rows: float) -> None:
        seen = 0.0 if member is None else member.num_rows
        self._model.record(skipped, num_hits, num_rows, weight=ALIKE**2 / ((ALIKE + seen) * (ALIKE + seen + num_rows)))
        self._num_rows += num_rows
        if member is not None:
            member.record(num_hits, num_rows)

    def _judge(self) -> None:
        """Take the challenger that is surely faster than the set in use, if both have been seen enough."""
        self._pool.forget(AGEING * (self._num_rows - self._judged_at) / ROWS_PER_EVALUATION)
        self._judged_at = self._num_rows
        self._pool.refresh()
        incumbent = self._pool.incumbent
        ranked = self._pool.ranked(self._context, -CAUTION)
        challenger = next((one for one in ranked if one.num_rows >= FEWEST_ROWS), incumbent)
        speed = self._pool.speed(incumbent, self._context)
        is_faster = self._pool.speed(challenger, self._context, -CAUTION) > MARGIN * speed
        if challenger is not incumbent and is_faster and incumbent.num_rows >= FEWEST_ROWS:
            self._pool.incumbent = challenger
            self._settling.change(self.num_evaluations, self._pool.speed(challenger, self._context) / speed)
            self._meet_incumbent()
        if self._settling.has_settled(self.num_evaluations):
            self._pool.keep()
        self._write_history()

    def _meet_incumbent(self) -> None:
        """Hold what it will do against what it did when it was scored."""
        incumbent = self._pool.incumbent
        num_rows = min(incumbent.num_rows, RECENT_ROWS)
        self._recent = RunningShare(RECENT_ROWS, incumbent.chance() * num_rows, num_rows)
        self._watch = DriftWatch(incumbent.chance() * incumbent.num_rows, incumbent.num_rows)
        num_rows = min(incumbent.num_rows, POLICY_ROWS)
        self._policy_watch = DriftWatch(incumbent.chance() * num_rows, num_rows)

    def _reopen(self) -> None:
        """The text is another: give up most of what was learnt and begin with the sets that served before."""
        self._settling.reopen(self.num_evaluations)
        self._pool.keep()
        self._pool.forget(1.0)
        self._model.forget(FORGOTTEN)
        for member in self._pool:
            member.num_due = FEWEST_ROWS
        self._meet_incumbent()

    def _write_history(self) -> None:
        if self.num_evaluations < self._history_step * len(self.history):
            return
        self.history.append((self.num_evaluations, self.chance(), len(self.skipped), self.speed(self._context)))
        if len(self.history) == LONGEST_HISTORY:
            del self.history[1::2]
            self._history_step *= 2


def believed(named: NamedSet) -> NamedSet:
    """The set with a record of at most KNOWN_ROWS rows."""
    share = min(1.0, KNOWN_ROWS / max(named.num_rows, 1.0))
    return replace(named, num_hits=share * named.num_hits, num_rows=share * named.num_rows)
