"""Our strategy: learns how much skipping each sublayer costs in hit rate, and drafts only if drafting should pay."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from forerun.core.sublayers import SkipSet, every_other_layer, skippable
from forerun.drafting.layer_skip.search import Strategy
from forerun.drafting.layer_skip.set_files import NamedSet
from forerun.drafting.layer_skip.set_pool import FallDetector, HitShare, PooledSet, SetPool
from forerun.drafting.layer_skip.skip_penalties import ROWS_PER_EVALUATION, Floats, PenaltyModel
from forerun.drafting.layer_skip.speed_model import SpeedModel

ROWS_ALIKE: Final = 48.0  # rows of one set that say as much about other sets as all its later rows
COMPARABLE_ROWS: Final = 32.0  # rows of a set before it can be compared with another
AGEING: Final = 0.001  # discount of every record per evaluation, since texts also change undetected
KNOWN_ROWS: Final = 256.0  # limit on the rows that the record of an earlier session counts as
CAUTION: Final = 1.0  # a set that is not in use is rated this many standard deviations below its mean
HOPE: Final = 0.25  # standard deviations above its mean at which a challenger must match the set in use to stay one
MARGIN: Final = 1.005  # required speed of a challenger as a multiple of the set in use
JUDGED_EVERY: Final = 32.0  # rows between two comparisons
MOST_RANDOM: Final = 0.7  # limit on the share of sublayers that a random candidate skips
REQUEST_SETS = 4  # best sets scored first when a request begins
REQUEST_ROWS = 8.0  # rows for each of them
STABLE: Final = 100  # evaluations without a gain after which the search has converged
LONGEST: Final = 1000  # evaluations after which the search ends in any case
GAIN: Final = 1.02  # least ratio of a new set's speed to the old one's that counts as a gain
SETTLED_SHARE: Final = 0.15  # share of the scoring that continues after the search has converged
RECENT_ROWS: Final = 512.0  # memory, in rows, of the recent hit rate of the set in use
DRAFT_ROWS: Final = 64.0  # limit on the rows of a set's record that its drafts are first compared with
FORGOTTEN: Final = 0.95  # discount of the evidence on penalties when the text has changed
CONTEXT_STEP: Final = 64  # tokens of context growth before drafting is reassessed
BEGIN_MARGIN: Final = 1.03  # speed over plain decoding, by a pessimistic estimate, at which drafting begins
TRIAL_MARGIN: Final = 0.9  # the same by the mean for a trial; below 1, as drafts stop early where confidence is low
TRIAL_OVERHEAD: Final = 0.1  # limit for a trial on a round's time in addition to its passes, as a share of a pass

IN_USE, CHALLENGER, SAMPLE, RANDOM = range(4)
CYCLE: Final = (IN_USE, *(CHALLENGER, SAMPLE) * 3, CHALLENGER)
KINDS: Final = (*CYCLE * 2, RANDOM)  # kinds of candidates, in turn


class GatedStrategy(Strategy):
    """Learns penalties of sublayers and compares the sets that they suggest with the set in use. It switches only to a
    set that is faster even by a pessimistic estimate.

    The search is open while better sets are still being found, then closed until the text changes. One search serves
    all requests of an engine. It has a separate random generator.

    Source: SWIFT (arXiv 2410.06916) instead tries random sets and keeps the best score, which is mostly chance.

    Args:
        num_layers: layers of the target, at least 3.
        speed_model: cost and gain of drafting on this machine.
        seed: seed of its random choices.
        known: sets of earlier sessions with their records.
    """

    def __init__(
        self, num_layers: int, speed_model: SpeedModel, *, seed: int = 0, known: Sequence[NamedSet] = ()
    ) -> None:
        assert num_layers >= 3, "only the layers between the first and the last can be skipped"
        absent = speed_model.costs.absent
        self._items = skippable(num_layers, absent)
        self._rng = np.random.default_rng(seed)
        self._model = PenaltyModel(num_layers, absent)
        self._context = speed_model.costs.context
        choice = speed_model.best_set(self._model.intercept, self._model.penalties, self._context)
        first = [limited(one) for one in known] or [NamedSet(name="prior", skipped=choice)]
        self._pool = SetPool(self._model, speed_model, first[0])
        others = every_other_layer(num_layers, absent)
        for named in (*first[1:], NamedSet(name="every other layer", skipped=others)):
            self._pool.add(named, self._context)
        self._pool.refresh()
        if known:
            self._pool.in_use = self._pool.ranked(self._context, -CAUTION)[0]
        self._challenger = self._pool.in_use
        self._num_rows = self._judged_at = self._found_at = 0.0
        self._num_made = self._num_found = 0
        self.is_searching = True  # not yet converged
        self.num_reopened = 0  # number of detected changes of text
        self._opened_at = self._gained_at = 0  # in evaluations
        self._num_changes = 0  # changes of any input of `is_worth_it`
        self._answer: tuple[int, int, bool] = (-1, -1, False)
        self._follow_pool()
        for member in self._pool:
            member.num_due = max(0.0, COMPARABLE_ROWS - member.num_rows)

    @property
    def speed_model(self) -> SpeedModel:
        """Expected cost and gain of drafting."""
        return self._pool.speed_model

    @property
    def share(self) -> float:
        return 1.0 if self.is_searching or any(member.num_due for member in self._pool) else SETTLED_SHARE

    @property
    def matchness(self) -> float | None:
        seen = self._pool.in_use.seen
        return seen.num_hits / seen.num_rows if seen.num_rows else None

    @property
    def num_scored(self) -> int:
        """Windows of 32 rows scored so far."""
        return int(self._num_rows) // ROWS_PER_EVALUATION

    def start_request(self) -> None:
        """Start a request: score the best sets of the pool first, since another one may suit the new text better."""
        for member in self._pool.ranked(self._context, 0.0)[:REQUEST_SETS]:
            member.num_due = max(member.num_due, REQUEST_ROWS)

    def take_overheads(self, round_s: float, expansion_s: float, plain_s: float = 0.0) -> None:
        self._pool.speed_model = replace(self.speed_model, round_s=round_s, expansion_s=expansion_s, plain_s=plain_s)
        self._num_changes += 1

    def propose(self, count: int, context: int) -> Sequence[SkipSet]:
        """Those due for scoring first, then the set in use, members of the pool, samples from the penalty model and a
        few random sets, in turn. A random set replaces a duplicate."""
        if count <= 0:
            return []
        self._context = context
        due = sorted((one for one in self._pool if one.num_due), key=lambda one: one is not self._pool.in_use)
        chosen = {member.skipped: None for member in due[:count]}
        for _ in range(count - len(chosen)):
            candidate = self._next()
            chosen[self._random() if candidate in chosen else candidate] = None
        return list(chosen)

    def told(self, skipped: SkipSet, num_hits: float, num_rows: float, *, is_draft: bool = False) -> None:
        if num_rows <= 0:
            return
        self._num_changes += 1
        member = self._pool.find(skipped)
        if not is_draft:
            self._record_scores(skipped, member, num_hits, num_rows)
        if member is self._pool.in_use:
            self._recent.told(num_hits, num_rows)
            detector = self._of_drafts if is_draft else self._of_scores
            detector.told(num_hits, num_rows)
            if detector.has_fallen():
                self._reopen()
        if self._num_rows >= self._judged_at + JUDGED_EVERY:
            self._judge()

    def chance(self) -> float:
        """Hit probability of the set in use, from its recent record."""
        in_use = self._pool.in_use
        recent = self._recent
        return (recent.num_hits + in_use.prior_hits) / (recent.num_rows + in_use.prior_rows)

    def speed(self, context: int) -> float:
        """Expected tokens per second of drafting with the set in use."""
        return self.speed_model.speed(self.chance(), self.skipped, context)

    def is_worth_it(self, context: int) -> bool:
        """Whether drafting is faster than plain decoding: by a pessimistic estimate until it is, then by the mean."""
        place, num_changes, is_worth_it = self._answer
        step = context // CONTEXT_STEP
        if (place, num_changes) != (step, self._num_changes):
            plain_speed = self.speed_model.plain_speed()
            in_use = self._pool.in_use
            if is_worth_it:
                is_worth_it = self.speed(context) > plain_speed
            else:
                chance = max(0.0, self.chance() - CAUTION * in_use.deviation(in_use.chance()))
                is_worth_it = is_worth_beginning(self.speed_model.speed(chance, self.skipped, context), plain_speed)
            self._answer = (step, self._num_changes, is_worth_it)
        return is_worth_it

    def may_pay(self, context: int) -> bool:
        if self.is_worth_it(context):
            return True
        model = self.speed_model
        return is_worth_a_trial(self.speed(context), model.plain_speed(), model.round_s, model.target.step_s(1))

    def known(self) -> tuple[NamedSet, ...]:
        """The state for a later search: the pool, the set in use first."""
        return self._pool.known()

    def _next(self) -> SkipSet:
        kind = KINDS[self._num_made % len(KINDS)]
        self._num_made += 1
        if kind == IN_USE:
            return self.skipped
        if kind == CHALLENGER:
            return self._next_challenger()
        return self._best(*self._model.sample(self._rng)) if kind == SAMPLE else self._random()

    def _next_challenger(self) -> SkipSet:
        """The fastest member that is not in use, by optimistic estimates; the model's best set is added first.

        It is scored until it can be compared or is clearly no better. If newer choices replaced it before that, no set
        would ever get enough rows.
        """
        pool = self._pool
        if not self._is_undecided():
            if self._num_rows >= self._found_at + ROWS_PER_EVALUATION:
                self._found_at = self._num_rows
                found = self._best(self._model.intercept, self._model.penalties)
                if pool.find(found) is None:
                    self._num_found += 1
                    pool.add(NamedSet(name=f"found {self._num_found}", skipped=found), self._context)
            ranked = pool.ranked(self._context, 1.0)
            self._challenger = next((one for one in ranked if one is not pool.in_use), pool.in_use)
        return self._challenger.skipped

    def _is_undecided(self) -> bool:
        """Whether the last challenger has too few rows and may still be faster than the set in use."""
        one = self._challenger
        pool = self._pool
        if one is pool.in_use or one not in pool or one.num_rows >= COMPARABLE_ROWS:
            return False
        return pool.speed(one, self._context, HOPE) >= pool.speed(pool.in_use, self._context)

    def _best(self, intercept: float, penalties: Floats) -> SkipSet:
        return self.speed_model.best_set(intercept, penalties, self._context)

    def _random(self) -> SkipSet:
        number = int(self._rng.integers(1, max(1, int(MOST_RANDOM * len(self._items))) + 1))
        return frozenset([self._items[place] for place in self._rng.permutation(len(self._items))[:number].tolist()])

    def _record_scores(self, skipped: SkipSet, member: PooledSet | None, num_hits: float, num_rows: float) -> None:
        seen = 0.0 if member is None else member.num_rows
        weight = ROWS_ALIKE**2 / ((ROWS_ALIKE + seen) * (ROWS_ALIKE + seen + num_rows))
        self._model.told(skipped, num_hits, num_rows, weight)
        self._num_rows += num_rows
        if member is not None:
            member.told(num_hits, num_rows)

    def _judge(self) -> None:
        """Switch to the challenger if both sets have enough rows and it is faster by a pessimistic estimate. Close the
        search if it has converged."""
        pool = self._pool
        context = self._context
        num_scored = self.num_scored
        pool.forget(AGEING * (self._num_rows - self._judged_at) / ROWS_PER_EVALUATION)
        self._judged_at = self._num_rows
        pool.refresh()
        ranked = pool.ranked(context, -CAUTION)
        challenger = next((one for one in ranked if one.num_rows >= COMPARABLE_ROWS), pool.in_use)
        speed = pool.speed(pool.in_use, context)
        is_faster = pool.speed(challenger, context, -CAUTION) > MARGIN * speed
        if challenger is not pool.in_use and is_faster and pool.in_use.num_rows >= COMPARABLE_ROWS:
            pool.in_use = challenger
            if pool.speed(challenger, context) / speed >= GAIN:
                self._gained_at = num_scored
            self._follow_pool()
        if self.is_searching and (num_scored - self._gained_at >= STABLE or num_scored - self._opened_at >= LONGEST):
            self.is_searching = False
            pool.keep()

    def _follow_pool(self) -> None:
        """Use the pool's set from now on, and compare its hit rate with its rate when it was scored."""
        in_use = self._pool.in_use
        self.skipped = in_use.skipped
        chance = in_use.chance()
        num_rows = in_use.num_rows
        recent_rows = min(num_rows, RECENT_ROWS)
        draft_rows = min(num_rows, DRAFT_ROWS)
        self._recent = HitShare(RECENT_ROWS, chance * recent_rows, recent_rows)
        self._of_scores = FallDetector(chance * num_rows, num_rows)
        self._of_drafts = FallDetector(chance * draft_rows, draft_rows)

    def _reopen(self) -> None:
        """Handle a change of text: discount most of the evidence and score all sets of the pool again."""
        self.is_searching = True
        self.num_reopened = self.num_reopened + 1
        self._opened_at = self._gained_at = self.num_scored
        self._pool.keep()
        self._pool.forget(1.0)
        self._model.forget(FORGOTTEN)
        for member in self._pool:
            member.num_due = COMPARABLE_ROWS
        self._follow_pool()


def limited(named: NamedSet) -> NamedSet:
    """The set with its record capped, so that new evidence can outweigh it."""
    share = min(1.0, KNOWN_ROWS / max(named.num_rows, 1.0))
    return replace(named, num_hits=share * named.num_hits, num_rows=share * named.num_rows)


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
