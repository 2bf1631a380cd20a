"""Caches that give slots back early and often, and in which other numbers stand where slots were given back."""

import pytest
import torch

from forerun.model import sliding_slots
from forerun.model.sliding_slots import SlidingSlots

WRONG = 30.0  # standard deviation of what stands there: a row that reads one of them has other logits


def lose_early(patch: pytest.MonkeyPatch, *, margin: int, step: int) -> None:
    """From now on a text can be cut back by this many tokens, and this many slots are given back at a time.

    Pages hold more slots than tiny models have, so each slot alone is overwritten, after what can be given back is.
    """
    give_back = SlidingSlots._give_back

    def lose(self: SlidingSlots, start: int, end: int) -> None:
        give_back(self, start, end)
        lost = self._storage_2LSKD[:, list(self._sliding), start:end]
        generator = torch.Generator().manual_seed(end)
        wrong = WRONG * torch.randn(lost.shape, generator=generator, dtype=torch.float64)
        self._storage_2LSKD[:, list(self._sliding), start:end] = wrong.to(lost.dtype)

    patch.setattr(sliding_slots, "WINDOW_MARGIN", margin)
    patch.setattr(sliding_slots, "WINDOW_STEP", step)
    patch.setattr(SlidingSlots, "_give_back", lose)
