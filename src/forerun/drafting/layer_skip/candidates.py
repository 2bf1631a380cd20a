"""Chooses the skip sets to score next."""

from typing import Final

import numpy as np

from forerun.core.sublayers import SkipSet, skippable
from forerun.drafting.layer_skip.named_set import NamedSet
from forerun.drafting.layer_skip.penalties import PenaltyModel
from forerun.drafting.layer_skip.set_pool import SetPool
from forerun.drafting.layer_skip.settings import ROWS_PER_EVALUATION, SearchSettings

IN_USE, CHALLENGER, SAMPLE, RANDOM = range(4)
CYCLE: Final = (IN_USE, *(CHALLENGER, SAMPLE) * 3, CHALLENGER)
KINDS: Final = (*CYCLE * 2, RANDOM)  # kinds of candidates, in turn


class SkipCandidates:
    """Alternates between the set in use, members of the pool, samples from the penalty model and a few random sets.

    Args:
        num_skipped: sublayers skipped per set; None: the number is chosen for speed. It must vary, since otherwise the
            model cannot learn the cost of skipping one more.
    """

    def __init__(
        self, num_layers: int, model: PenaltyModel, pool: SetPool, rng: np.random.Generator, settings: SearchSettings,
        num_skipped: int | None,
    ) -> None:  # fmt: skip
        self._items, self._settings = skippable(num_layers), settings
        self._model, self._pool, self._rng, self._num_skipped = model, pool, rng, num_skipped
        self._num_made = self._num_found = 0
        self._found_at = 0.0
        self._challenger = pool.in_use

    def next(self, count: int, context: int, num_rows: float) -> list[SkipSet]:
        """At most `count` different sets: those due for scoring first, then each kind in turn. A random set replaces
        a duplicate.

        Args:
            num_rows: rows scored so far.
        """
        due = sorted((one for one in self._pool if one.num_due), key=lambda one: one is not self._pool.in_use)
        chosen = {member.skipped: None for member in due[:count]}
        for _ in range(count - len(chosen)):
            candidate = self._next(context, num_rows)
            chosen[self._random() if candidate in chosen else candidate] = None
        return list(chosen)

    def _next(self, context: int, num_rows: float) -> SkipSet:
        kind = KINDS[self._num_made % len(KINDS)]
        self._num_made += 1
        if kind == IN_USE:
            return self._pool.in_use.skipped
        if kind == CHALLENGER:
            return self._next_challenger(context, num_rows)
        return self._best(*self._model.sample(self._rng), context) if kind == SAMPLE else self._random()

    def _next_challenger(self, context: int, num_rows: float) -> SkipSet:
        """The fastest member that is not in use, by optimistic estimates; the model's best set is added first.

        It is scored until it can be compared or is clearly no better. If newer choices replaced it before that, no set
        would ever get enough rows.
        """
        if not self._is_undecided(context):
            if num_rows >= self._found_at + ROWS_PER_EVALUATION:
                self._found_at = num_rows
                self._find(context)
            ranked, in_use = self._pool.ranked(context, 1.0), self._pool.in_use
            self._challenger = next((one for one in ranked if one is not in_use), in_use)
        return self._challenger.skipped

    def _is_undecided(self, context: int) -> bool:
        """Whether the last challenger has too few rows and may still be faster than the set in use."""
        one, pool = self._challenger, self._pool
        if one is pool.in_use or one not in pool or one.num_rows >= self._settings.comparable_rows:
            return False
        return pool.speed(one, context, self._settings.hope) >= pool.speed(pool.in_use, context)

    def _find(self, context: int) -> None:
        """Add the model's best set to the pool."""
        found = self._best(self._model.intercept, self._model.penalties, context)
        if self._pool.find(found) is None:
            self._num_found += 1
            self._pool.add(NamedSet(name=f"found {self._num_found}", skipped=found), context)

    def _best(self, intercept: float, penalties: np.ndarray, context: int) -> SkipSet:
        return self._pool.speed_model.best_set(intercept, penalties, context, self._num_skipped)

    def _random(self) -> SkipSet:
        most = max(1, int(self._settings.most_random * len(self._items)))
        number = self._num_skipped or int(self._rng.integers(1, most + 1))
        return frozenset([self._items[place] for place in self._rng.permutation(len(self._items))[:number].tolist()])
