"""Search for the sublayers that self-drafting skips, by hit rates."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from forerun.core.sublayers import SkipSet, every_other_layer
from forerun.drafting.layer_skip.candidates import SkipCandidates
from forerun.drafting.layer_skip.hit_share import FallDetector, HitShare
from forerun.drafting.layer_skip.named_set import NamedSet
from forerun.drafting.layer_skip.penalties import PenaltyModel
from forerun.drafting.layer_skip.set_pool import PooledSet, SetPool
from forerun.drafting.layer_skip.settings import ROWS_PER_EVALUATION, TUNED, SearchSettings
from forerun.drafting.layer_skip.speed_model import SpeedModel
from forerun.drafting.layer_skip.stopping_rule import StoppingRule


class SetSearch:
    """Learns penalties of sublayers and compares the sets that they suggest with the set in use. It switches only to a
    set that is faster even by a pessimistic estimate.

    One search serves all requests of an engine. It has a separate random generator.

    Source: SWIFT (arXiv 2410.06916) instead tries random sets and keeps the best score, which is mostly chance.

    Args:
        num_layers: layers of the target, at least 3.
        speed_model: cost and gain of drafting on this machine.
        seed: seed of its random choices.
        known: sets of earlier sessions with their records.
        num_skipped: sublayers skipped per set; None: the number is chosen for speed.
    """

    def __init__(
        self, num_layers: int, speed_model: SpeedModel, *, seed: int = 0, known: Sequence[NamedSet] = (),
        num_skipped: int | None = None, settings: SearchSettings = TUNED,
    ) -> None:  # fmt: skip
        assert num_layers >= 3, "only the layers between the first and the last can be skipped"
        self._settings, self._context = settings, speed_model.costs.context
        self._model = PenaltyModel(num_layers, settings)
        choice = speed_model.best_set(self._model.intercept, self._model.penalties, self._context, num_skipped)
        first = [self._limited(one) for one in known] or [NamedSet(name="prior", skipped=choice)]
        self._pool = SetPool(self._model, speed_model, first[0], settings)
        for named in (*first[1:], NamedSet(name="every other layer", skipped=every_other_layer(num_layers))):
            self._pool.add(named, self._context)
        self._pool.refresh()
        if known:
            self._pool.in_use = self._pool.ranked(self._context, -settings.caution)[0]
        rng = np.random.default_rng(seed)
        self._candidates = SkipCandidates(num_layers, self._model, self._pool, rng, settings, num_skipped)
        self._stopping = StoppingRule(settings)
        self._num_rows = self._judged_at = 0.0
        self._num_changes = 0  # changes of any input of `is_worth_it`
        self._answer: tuple[int, int, bool] = (-1, -1, False)
        self._watch_set_in_use()
        for member in self._pool:
            member.num_due = max(0.0, settings.comparable_rows - member.num_rows)

    @property
    def skipped(self) -> SkipSet:
        """The set in use."""
        return self._pool.in_use.skipped

    @property
    def speed_model(self) -> SpeedModel:
        """Expected cost and gain of drafting."""
        return self._pool.speed_model

    @property
    def is_open(self) -> bool:
        """Whether the search has not yet converged."""
        return self._stopping.is_open

    @property
    def share(self) -> float:
        """The share of the possible probe rows to use."""
        return 1.0 if any(member.num_due for member in self._pool) else self._stopping.share

    @property
    def num_evaluations(self) -> int:
        """Windows of 32 rows scored so far."""
        return int(self._num_rows) // ROWS_PER_EVALUATION

    @property
    def num_reopened(self) -> int:
        """Number of detected changes of text."""
        return self._stopping.num_reopened

    def begin_request(self) -> None:
        """Start a request: score the best sets of the pool first, since another one may suit the new text better."""
        for member in self._pool.ranked(self._context, 0.0)[: self._settings.request_sets]:
            member.num_due = max(member.num_due, self._settings.request_rows)

    def take_overheads(self, round_s: float, expansion_s: float, plain_s: float = 0.0) -> None:
        """Update the measured seconds that rounds, drafted tokens and plain rounds take in addition to their passes."""
        self._pool.speed_model = replace(self.speed_model, round_s=round_s, expansion_s=expansion_s, plain_s=plain_s)
        self._num_changes += 1

    def candidates(self, count: int, context: int) -> list[SkipSet]:
        """At most this many different sets to score next, all at the same positions."""
        self._context = context
        return self._candidates.next(count, context, self._num_rows) if count > 0 else []

    def record(self, skipped: SkipSet, num_hits: float, num_rows: float, *, is_draft: bool = False) -> None:
        """Record the guesses of one set.

        Args:
            num_hits: how many of `num_rows` guesses equalled the text's token.
            is_draft: these are guesses of the draft in use. They measure its hit rate, but cannot be used to compare
                sets, since the draft selected the positions itself.
        """
        if num_rows <= 0:
            return
        self._num_changes += 1
        member = self._pool.find(skipped)
        if not is_draft:
            self._record_scores(skipped, member, num_hits, num_rows)
        if member is self._pool.in_use:
            self._recent.record(num_hits, num_rows)
            detector = self._of_drafts if is_draft else self._of_scores
            detector.record(num_hits, num_rows)
            if detector.has_fallen():
                self._reopen()
        if self._num_rows >= self._judged_at + self._settings.judged_every:
            self._judge()

    def chance(self) -> float:
        """Hit probability of the set in use, from its recent record."""
        in_use, recent = self._pool.in_use, self._recent
        return (recent.num_hits + in_use.prior_hits) / (recent.num_rows + in_use.prior_rows)

    def speed(self, context: int) -> float:
        """Expected tokens per second of drafting with the set in use."""
        return self.speed_model.speed(self.chance(), self.skipped, context)

    def is_worth_it(self, context: int) -> bool:
        """Whether drafting is faster than plain decoding: by a pessimistic estimate until it is, then by the mean."""
        place, num_changes, is_worth_it = self._answer
        step = context // self._settings.context_step
        if (place, num_changes) != (step, self._num_changes):
            chance, margin, in_use = self.chance(), 1.0, self._pool.in_use
            if not is_worth_it:
                chance = max(0.0, chance - self._settings.caution * in_use.deviation(in_use.chance()))
                margin = self._settings.begin_margin
            speed = self.speed_model.speed(chance, self.skipped, context)
            is_worth_it = speed > margin * self.speed_model.plain_speed()
            self._answer = (step, self._num_changes, is_worth_it)
        return is_worth_it

    def known(self) -> tuple[NamedSet, ...]:
        """The state for a later search: the pool, the set in use first."""
        return self._pool.known()

    def _limited(self, named: NamedSet) -> NamedSet:
        """The set with its record capped, so that new evidence can outweigh it."""
        share = min(1.0, self._settings.known_rows / max(named.num_rows, 1.0))
        return replace(named, num_hits=share * named.num_hits, num_rows=share * named.num_rows)

    def _record_scores(self, skipped: SkipSet, member: PooledSet | None, num_hits: float, num_rows: float) -> None:
        seen, alike = 0.0 if member is None else member.num_rows, self._settings.rows_alike
        weight = alike**2 / ((alike + seen) * (alike + seen + num_rows))
        self._model.record(skipped, num_hits, num_rows, weight)
        self._num_rows += num_rows
        if member is not None:
            member.record(num_hits, num_rows)

    def _judge(self) -> None:
        """Switch to the challenger if both sets have enough rows and it is faster by a pessimistic estimate."""
        pool, context, settings = self._pool, self._context, self._settings
        pool.forget(settings.ageing * (self._num_rows - self._judged_at) / ROWS_PER_EVALUATION)
        self._judged_at = self._num_rows
        pool.refresh()
        ranked = pool.ranked(context, -settings.caution)
        challenger = next((one for one in ranked if one.num_rows >= settings.comparable_rows), pool.in_use)
        speed = pool.speed(pool.in_use, context)
        is_faster = pool.speed(challenger, context, -settings.caution) > settings.margin * speed
        if challenger is not pool.in_use and is_faster and pool.in_use.num_rows >= settings.comparable_rows:
            pool.in_use = challenger
            self._stopping.change(self.num_evaluations, pool.speed(challenger, context) / speed)
            self._watch_set_in_use()
        if self._stopping.settles(self.num_evaluations):
            pool.keep()

    def _watch_set_in_use(self) -> None:
        """From now on compare the hit rate of the set in use with its rate when it was scored."""
        in_use, settings = self._pool.in_use, self._settings
        chance, num_rows = in_use.chance(), in_use.num_rows
        recent_rows, draft_rows = min(num_rows, settings.recent_rows), min(num_rows, settings.draft_rows)
        self._recent = HitShare(settings.recent_rows, chance * recent_rows, recent_rows)
        self._of_scores = FallDetector(settings, chance * num_rows, num_rows)
        self._of_drafts = FallDetector(settings, chance * draft_rows, draft_rows)

    def _reopen(self) -> None:
        """Handle a change of text: discount most of the evidence and score all sets of the pool again."""
        self._stopping.reopen(self.num_evaluations)
        self._pool.keep()
        self._pool.forget(1.0)
        self._model.forget(self._settings.forgotten)
        for member in self._pool:
            member.num_due = self._settings.comparable_rows
        self._watch_set_in_use()
