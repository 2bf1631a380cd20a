"""A pool of skip sets with the hit records of each, combined with the penalty model's prior."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from forerun.core.sublayers import SkipSet
from forerun.drafting.layer_skip.set_files import NamedSet
from forerun.drafting.layer_skip.skip_penalties import Floats, PenaltyModel, sigmoid, sigmoids
from forerun.drafting.layer_skip.speed_model import SpeedModel, numbers_of

POOL_SIZE: Final = 8  # sets with a separate record
NUM_KEPT: Final = 4  # sets of the pool that were used for earlier texts and are kept for similar ones
RECORD_MEMORY: Final = 4096.0  # limit on a set's record, in rows
UNEXPLAINED: Final = 0.5  # standard deviation, in log-odds, of sets from the sum of their penalties
MOST_PRIOR_ROWS: Final = 24.0  # limit on the rows that the model's prior of a set counts as
FALL_RECENT = 64.0  # memory, in rows, of the recent hit rate
FALL_PAST = 2048.0  # the same of the one that it is compared with
FALL_LEAST: Final = 32.0  # least rows of either for a comparison
FALL_DEVIATIONS: Final = 3.0  # standard deviations by which the recent rate must be lower to count as a change of text
OVERDISPERSION: Final = 1.5  # variance of hits relative to independent hits: texts have easy and hard passages


class HitShare:
    """Hits and rows, with less weight on older ones.

    Args:
        memory: limit on the total weight, in rows.
        num_hits, num_rows: initial counts.
    """

    def __init__(self, memory: float, num_hits: float = 0.0, num_rows: float = 0.0) -> None:
        self._memory = memory
        self.num_hits = num_hits
        self.num_rows = num_rows

    def told(self, num_hits: float, num_rows: float) -> None:
        self.forget(min(1.0, num_rows / self._memory))
        self.num_hits += num_hits
        self.num_rows += num_rows

    def forget(self, share: float) -> None:
        """Discount the counts by this share."""
        self.num_hits *= 1.0 - share
        self.num_rows *= 1.0 - share


class FallDetector:
    """Detects a recent hit rate well below the past one, for example after a change of text.

    Args:
        num_hits, num_rows: initial counts of the past rate.
    """

    def __init__(self, num_hits: float, num_rows: float) -> None:
        self._recent = HitShare(FALL_RECENT)
        self._past = HitShare(FALL_PAST, num_hits, num_rows)

    def told(self, num_hits: float, num_rows: float) -> None:
        self._recent.told(num_hits, num_rows)
        self._past.told(num_hits, num_rows)

    def has_fallen(self) -> bool:
        recent = self._recent
        past = self._past
        if recent.num_rows < FALL_LEAST or past.num_rows < recent.num_rows + FALL_LEAST:
            return False
        share = (past.num_hits + 1.0) / (past.num_rows + 2.0)
        variance = OVERDISPERSION * share * (1.0 - share) * (1.0 / recent.num_rows + 1.0 / past.num_rows)
        return recent.num_hits / recent.num_rows < share - FALL_DEVIATIONS * math.sqrt(variance)


@dataclass(slots=True, kw_only=True, eq=False)
class PooledSet:
    """A set in the pool.

    Args:
        numbers: attentions and MLPs skipped.
        features: its features in the penalty model.
        seen: its measured hits.
        prior_hits, prior_rows: the model's prior as pseudo-counts.
        num_due: rows that must be scored for it before other sets are scored.
        kept_since: number of sets kept before it; 0 if it is not kept.
    """

    name: str
    skipped: SkipSet
    numbers: tuple[int, int]
    features: Floats
    seen: HitShare
    prior_hits: float
    prior_rows: float = 1.0
    num_due: float = 0.0
    kept_since: int = 0

    @property
    def num_rows(self) -> float:
        """Rows scored."""
        return self.seen.num_rows

    def chance(self, num_deviations: float = 0.0) -> float:
        """Its hit probability, this many standard deviations above the mean."""
        chance = (self.seen.num_hits + self.prior_hits) / (self.seen.num_rows + self.prior_rows)
        return chance + num_deviations * self.deviation(chance) if num_deviations else chance

    def deviation(self, chance: float) -> float:
        """Standard deviation of this probability."""
        return math.sqrt(chance * (1.0 - chance) / (self.seen.num_rows + self.prior_rows + 1.0))

    def told(self, num_hits: float, num_rows: float) -> None:
        self.seen.told(num_hits, num_rows)
        self.num_due = max(0.0, self.num_due - num_rows)


class SetPool:
    """A few sets, one of which is in use and is never removed.

    Args:
        model: gives the prior of a set without a record.
        speed_model: maps hit probability to speed.
        first: the set in use at first.
    """

    def __init__(self, model: PenaltyModel, speed_model: SpeedModel, first: NamedSet) -> None:
        self._model = model
        self.speed_model = speed_model
        self._members: dict[SkipSet, PooledSet] = {}
        self._num_kept = 0
        self.in_use = self._enter(first)

    def __iter__(self) -> Iterator[PooledSet]:
        return iter(self._members.values())

    def __contains__(self, member: PooledSet) -> bool:
        return self._members.get(member.skipped) is member

    def find(self, skipped: SkipSet) -> PooledSet | None:
        return self._members.get(skipped)

    def add(self, named: NamedSet, context: int) -> PooledSet:
        """Add a set; a full pool drops the one with the lowest optimistic speed."""
        if (member := self._members.get(named.skipped)) is not None:
            return member
        if len(self._members) == POOL_SIZE:
            order = self.ranked(context, 1.0)
            last = next(one for one in reversed(order) if one is not self.in_use and not one.kept_since)
            del self._members[last.skipped]
        return self._enter(named)

    def keep(self) -> None:
        """Keep the set in use in the pool even when it is replaced; if too many are kept, stop keeping the oldest."""
        self._num_kept += 1
        self.in_use.kept_since = self._num_kept
        for member in self:
            if member.kept_since <= self._num_kept - NUM_KEPT:
                member.kept_since = 0

    def refresh(self) -> None:
        """Recompute the members' priors from the model."""
        logits, deviations = self._model.estimates(np.stack([member.features for member in self]))
        variances = deviations * deviations + UNEXPLAINED**2
        chances = sigmoids(logits / np.sqrt(1.0 + math.pi / 8.0 * variances))  # mean probability (MacKay)
        num_rows = np.clip(1.0 / (variances * chances * (1.0 - chances)) - 1.0, 1.0, MOST_PRIOR_ROWS)
        for member, chance, rows in zip(self, chances.tolist(), num_rows.tolist(), strict=True):
            member.prior_hits = chance * rows
            member.prior_rows = rows

    def speed(self, member: PooledSet, context: int, num_deviations: float = 0.0) -> float:
        """Tokens per second of one member, with its probability this many standard deviations above the mean."""
        chance = min(1.0, max(0.0, member.chance(num_deviations)))
        return self.speed_model.speed(chance, member.skipped, context)

    def ranked(self, context: int, num_deviations: float) -> list[PooledSet]:
        """The members, fastest first, with each probability this many standard deviations above its mean."""
        members = list(self)
        chances = np.array([member.chance(num_deviations) for member in members])
        numbers = np.array([member.numbers for member in members], dtype=float)
        speeds = self.speed_model.speeds(np.clip(chances, 0.0, 1.0), numbers[:, 0], numbers[:, 1], context)
        return [members[place] for place in (-speeds).argsort(kind="stable").tolist()]

    def forget(self, share: float) -> None:
        """Discount all records by this share."""
        for member in self:
            member.seen.forget(share)

    def known(self) -> tuple[NamedSet, ...]:
        """All members, the one in use first."""
        return tuple(
            NamedSet(name=one.name, skipped=one.skipped, num_hits=one.seen.num_hits, num_rows=one.seen.num_rows)
            for one in sorted(self, key=lambda member: member is not self.in_use)
        )

    def _enter(self, named: NamedSet) -> PooledSet:
        features = self._model.features(named.skipped)
        model = self._model
        member = PooledSet(
            name=named.name,
            skipped=named.skipped,
            numbers=numbers_of(named.skipped),
            features=features,
            seen=HitShare(RECORD_MEMORY, named.num_hits, named.num_rows),
            prior_hits=sigmoid(float(features @ np.concatenate(([model.intercept], model.penalties)))),
        )
        self._members[member.skipped] = member
        return member
