"""A chooser that gives turns at random: where nothing pays, the real one lets nobody draft, which shows nothing."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from forerun.core.pace import Pace
from forerun.decoding import drafters
from forerun.engine import learnt
from forerun.speculation.referee.budget import ProposedTree
from forerun.speculation.referee.costs import RoundCosts
from forerun.speculation.referee.referee import DraftTurn, Referee
from forerun.speculation.tree import TokenTree


class RandomTurns(Referee):
    """Gives every round to a random drafter, or none, and lets another one guess."""

    rng = random.Random()

    @property
    def _has_no_choice(self) -> bool:
        """A single drafter with fixed widths drafts in every round."""
        return self._is_fixed and len(self._names) < 2

    def _next_turn(self) -> DraftTurn:
        turn = super()._next_turn()
        if self._has_no_choice:
            return turn
        drafter, watched = self.rng.sample([*self._names, None], 2)
        return DraftTurn(drafter=drafter, max_rows=self.rng.choice([2, 4, 16]) if drafter else 1, watched=watched)

    def measure(self, **measured: Any) -> None:
        super().measure(**measured)
        self.turn = self._next_turn()

    def cut(self, proposal: ProposedTree) -> TokenTree:
        tree = super().cut(proposal)
        if self._has_no_choice:
            return tree
        return proposal.tree.select(proposal.tree.best(self.turn.max_rows))


@contextmanager
def turns_at_random() -> Iterator[None]:
    """Engines and drafters that are made within have such a chooser, and rows cost nothing for them."""
    RandomTurns.rng.seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drafters, "Referee", RandomTurns)
        patch.setattr(drafters, "TOGETHER", 1)
        patch.setattr(learnt, "measure_pace", lambda *_, **__: Pace(steps=((64, 1e-3),)))
        patch.setattr(RoundCosts, "measure", lambda self, num_rows, seconds, num_rounds=1: None)
        yield
