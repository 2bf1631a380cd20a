"""A chooser that gives turns at random: where nothing pays, the real one lets nobody draft, which shows nothing."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from forerun.drafting import automatic
from forerun.speculation.economy.choice import Chooser, DraftTurn


class RandomTurns(Chooser):
    """Gives every round to a random drafter, or none, and lets another one guess."""

    rng = random.Random()

    def _next_turn(self) -> DraftTurn:
        super()._next_turn()
        drafter, watched = self.rng.sample([*self._names, None], 2)
        return DraftTurn(drafter=drafter, most_rows=self.rng.choice([2, 4, 16]) if drafter else 1, watched=watched)


@contextmanager
def turns_at_random() -> Iterator[None]:
    """Engines and drafters that are made within have such a chooser, for as long as they live."""
    RandomTurns.rng.seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(automatic, "Chooser", RandomTurns)
        yield
