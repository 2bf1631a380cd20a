"""Which skip sets to score next."""

from typing import Final

import numpy as np

from forerun.core.sublayers import SkipSet, skippable
from forerun.drafting.layer_skip.named_set import NamedSet
from forerun.drafting.layer_skip.penalties import ROWS_PER_EVALUATION, DamageModel
from forerun.drafting.layer_skip.set_pool import FEWEST_ROWS, SkipPool

INCUMBENT, CHALLENGER, SAMPLE, RANDOM = range(4)
CYCLE: Final = (INCUMBENT, *(CHALLENGER, SAMPLE) * 3, CHALLENGER)
TURNS: Final = (*CYCLE * 2, RANDOM)
HOPE: Final = 0.25  # deviations above its mean at which a challenger must still match the set in use
MOST_RANDOM: Final = 0.7  # share of the sublayers that a random set skips at most


class SkipCandidates:
    """The set in use, members of the pool, samples from the damage model and now and then a random set, by turns.

    Args:
        num_skipped: how many sublayers each set skips; None: as many as pay. The number has to vary for the model to
            learn what one more costs.
    """

    def __init__(
        self, num_layers: int, model: DamageModel, pool: SkipPool, rng: np.random.Generator, num_skipped: int | None
    ) -> None:
        self._items = skippable(num_layers)
        self._model, self._pool, self._rng, self._num_skipped = model, pool, rng, num_skipped
        self._turn = self._num_found = 0
        self._found_at = 0.0
        self._rival = pool.incumbent

    def next(self, count: int, context: int, num_rows: float) -> list[SkipSet]:
        """At most so many different sets: those whose scoring is due, then by turn, at random instead of twice.

        Args:
            num_rows: rows scored so far, which tell how much the model may have learnt.
        """
        due = sorted((one for one in self._pool if one.num_due), key=lambda one: one is not self._pool.incumbent)
        chosen = {member.skipped: None for member in due[:count]}
        for _ in range(count - len(chosen)):
            candidate = self._by_turn(context, num_rows)
            chosen[self._random() if candidate in chosen else candidate] = None
        return list(chosen)

    def _by_turn(self, context: int, num_rows: float) -> SkipSet:
        turn = TURNS[self._turn]
        self._turn = (self._turn + 1) % len(TURNS)
        if turn == INCUMBENT:
            return self._pool.incumbent.skipped
        if turn == CHALLENGER:
            return self._challenger(context, num_rows)
        return self._sample(context) if turn == SAMPLE else self._random()

    def _challenger(self, context: int, num_rows: float) -> SkipSet:
        """The most promising member but the incumbent, once the model's own choice is one of them.

        It is scored until it can be compared or is plainly no better: by turning to every newer choice at once, no set
        would ever be seen enough.
        """
        if not self._is_undecided(context):
            if num_rows >= self._found_at + ROWS_PER_EVALUATION:
                self._found_at = num_rows
                self._find(context)
            ranked = self._pool.ranked(context, 1.0)
            self._rival = next((one for one in ranked if one is not self._pool.incumbent), self._pool.incumbent)
        return self._rival.skipped

    def _is_undecided(self, context: int) -> bool:
        """Whether the last challenger has been seen too little and may yet be faster than the set in use."""
        rival, incumbent = self._rival, self._pool.incumbent
        if rival is incumbent or rival not in self._pool or rival.num_rows >= FEWEST_ROWS:
            return False
        return self._pool.speed(rival, context, HOPE) >= self._pool.speed(incumbent, context)

    def _find(self, context: int) -> None:
        """Let the set that the model thinks best into the pool."""
        found = self._pool.economy.best_set(self._model.intercept, self._model.damages, context, self._num_skipped)
        if self._pool.find(found) is None:
            self._num_found += 1
            self._pool.add(NamedSet(name=f"found {self._num_found}", skipped=found), context)

    def _sample(self, context: int) -> SkipSet:
        """The best set if the damages were a sample of what they may be."""
        intercept, damages = self._model.sample(self._rng)
        return self._pool.economy.best_set(intercept, damages, context, self._num_skipped)

    def _random(self) -> SkipSet:
        most = max(1, int(MOST_RANDOM * len(self._items)))
        number = self._num_skipped or int(self._rng.integers(1, most + 1))
        return frozenset([self._items[place] for place in self._rng.permutation(len(self._items))[:number].tolist()])
