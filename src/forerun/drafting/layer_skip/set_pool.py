"""A few skip sets by name, each with its own record of hits, weighed with what the damage model thinks of it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from forerun.core.sublayers import ATTENTION, SkipSet
from forerun.drafting.layer_skip.drift import RunningShare
from forerun.drafting.layer_skip.named_set import NamedSet
from forerun.drafting.layer_skip.penalties import DamageModel, Floats, sigmoid, sigmoids
from forerun.drafting.layer_skip.set_choice import Economy

POOL_SIZE: Final = 8
FEWEST_ROWS: Final = 32.0  # of its own before a set can be compared with another
NUM_KEPT: Final = 4  # sets that served other texts well and may do so again
MEMORY: Final = 4096.0  # rows after which a record forgets
UNEXPLAINED: Final = 0.5  # deviation, in log-odds, of what sets are from the sum of their damages
MOST_PRIOR_ROWS: Final = 24.0  # how many rows the model's word counts as, at most


@dataclass(slots=True, kw_only=True, eq=False)
class PooledSet:
    """A set in the pool.

    Args:
        num_attention, num_mlp: how many sublayers of each kind it skips.
        features: of the damage model.
        seen: its own hits.
        num_due: rows it is to be scored at before anything else is.
        kept_since: how many sets were kept before it; 0 if it is not kept.
        prior_hits, prior_rows: the model's word, as if it had been seen.
    """

    name: str
    skipped: SkipSet
    num_attention: int
    num_mlp: int
    features: Floats
    seen: RunningShare
    num_due: float = 0.0
    kept_since: int = 0
    prior_hits: float = 0.0
    prior_rows: float = 1.0

    @property
    def num_rows(self) -> float:
        """Rows that it was scored at."""
        return self.seen.num_rows

    def chance(self) -> float:
        """The mean of its chance of a hit."""
        return (self.seen.num_hits + self.prior_hits) / (self.seen.num_rows + self.prior_rows)

    def deviation(self) -> float:
        chance = self.chance()
        return math.sqrt(chance * (1.0 - chance) / (self.seen.num_rows + self.prior_rows + 1.0))

    def record(self, num_hits: float, num_rows: float) -> None:
        self.seen.record(num_hits, num_rows)
        self.num_due = max(0.0, self.num_due - num_rows)


class SkipPool:
    """At most POOL_SIZE sets; one of them, the incumbent, is in use and never leaves.

    Args:
        model: what is thought of a set before it was seen itself.
        economy: what a chance is worth.
        first: the first incumbent.
    """

    def __init__(self, model: DamageModel, economy: Economy, first: NamedSet) -> None:
        self._model = model
        self.economy = economy
        self._members: dict[SkipSet, PooledSet] = {}
        self._num_kept = 0
        self.incumbent = self._enter(first)

    def __iter__(self) -> Iterator[PooledSet]:
        return iter(self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, member: PooledSet) -> bool:
        return self._members.get(member.skipped) is member

    def find(self, skipped: SkipSet) -> PooledSet | None:
        return self._members.get(skipped)

    def add(self, named: NamedSet, context: int) -> PooledSet:
        """Let a set in; where the pool is full, the one worth least at its best leaves it."""
        if (member := self._members.get(named.skipped)) is not None:
            return member
        if len(self._members) == POOL_SIZE:
            order = self.ranked(context, 1.0)
            last = next(one for one in reversed(order) if one is not self.incumbent and not one.kept_since)
            del self._members[last.skipped]
        return self._enter(named)

    def keep(self) -> None:
        """Let the incumbent stay even after others have taken its place; the set kept for longest loses this right."""
        self._num_kept += 1
        self.incumbent.kept_since = self._num_kept
        kept = sorted((member for member in self if member.kept_since), key=lambda member: member.kept_since)
        for member in kept[:-NUM_KEPT]:
            member.kept_since = 0

    def refresh(self) -> None:
        """Ask the model anew what it thinks of the members."""
        logits, deviations = self._model.estimates(np.stack([member.features for member in self]))
        variances = deviations * deviations + UNEXPLAINED**2
        chances = sigmoids(logits / np.sqrt(1.0 + math.pi / 8.0 * variances))
        num_rows = np.clip(1.0 / (variances * chances * (1.0 - chances)) - 1.0, 1.0, MOST_PRIOR_ROWS)
        for member, chance, rows in zip(self, chances.tolist(), num_rows.tolist(), strict=True):
            member.prior_hits, member.prior_rows = chance * rows, rows

    def speed(self, member: PooledSet, context: int, num_deviations: float = 0.0) -> float:
        """Tokens per second of one member if its chance is so many deviations off its mean."""
        chance = min(1.0, max(0.0, member.chance() + num_deviations * member.deviation()))
        return self.economy.speed(chance, member.skipped, context)

    def ranked(self, context: int, num_deviations: float) -> list[PooledSet]:
        """The members, fastest first, if each one's chance is so many deviations off its mean."""
        chances = np.array([member.chance() + num_deviations * member.deviation() for member in self])
        numbers = np.array([(member.num_attention, member.num_mlp) for member in self], dtype=float)
        speeds = self.economy.speeds(np.clip(chances, 0.0, 1.0), numbers[:, 0], numbers[:, 1], context)
        members = list(self)
        return [members[place] for place in (-speeds).argsort(kind="stable").tolist()]

    def forget(self, share: float) -> None:
        """Give up this share of every record."""
        for member in self:
            member.seen.forget(share)

    def known(self) -> tuple[NamedSet, ...]:
        """All members, the incumbent first."""
        members = sorted(self, key=lambda member: member is not self.incumbent)
        return tuple(
            NamedSet(
                name=member.name, skipped=member.skipped, num_hits=member.seen.num_hits, num_rows=member.seen.num_rows
            )
            for member in members
        )

    def _enter(self, named: NamedSet) -> PooledSet:
        num_attention = sum(kind == ATTENTION for _, kind in named.skipped)
        member = PooledSet(
            name=named.name,
            skipped=named.skipped,
            num_attention=num_attention,
            num_mlp=len(named.skipped) - num_attention,
            features=self._model.features(named.skipped),
            seen=RunningShare(MEMORY, named.num_hits, named.num_rows),
        )
        chance = sigmoid(float(member.features @ np.concatenate(([self._model.intercept], self._model.damages))))
        member.prior_hits = chance  # of one row, until the model is asked properly
        self._members[member.skipped] = member
        return member
