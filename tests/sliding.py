"""Caches that give slots back early and often, and in which other numbers stand where slots were given back."""

import pytest
import torch

from forerun.core.model_spec import WINDOW_MARGIN
from forerun.model.sliding_slots import SlidingSlots

WRONG = 30.0  # standard deviation of what stands there: a row that reads one of them has other logits


def lose_early(patch: pytest.MonkeyPatch, *, margin: int, step: int) -> None:
    """From now on a text can be cut back by this many tokens, and this many slots are given back at a time.

    Pages hold more slots than tiny models have, so each slot alone is overwritten, after what can be given back is.
    """
    give_back = SlidingSlots._give_back
    pass_by = SlidingSlots.pass_by

    def lose(self: SlidingSlots, start: int, end: int) -> None:
        give_back(self, start, end)
        lost = self._storage[:, list(self._sliding), start:end]
        generator = torch.Generator().manual_seed(end)
        wrong = WRONG * torch.randn(lost.shape, generator=generator, dtype=torch.float64)
        if lost.dtype == torch.int8:
            wrong = wrong.abs().clamp(max=63)  # four such bytes are a scale below 1, and no NaN
        self._storage[:, list(self._sliding), start:end] = wrong.to(lost.dtype)

    def pass_sooner(self: SlidingSlots, length: int) -> None:
        if self._margin == WINDOW_MARGIN:
            self.lose((self._first_read(length) - margin) // step * step)
        else:  # of layers with a state, which are kept as long as the states
            pass_by(self, length)

    patch.setattr(SlidingSlots, "pass_by", pass_sooner)
    patch.setattr(SlidingSlots, "_give_back", lose)
