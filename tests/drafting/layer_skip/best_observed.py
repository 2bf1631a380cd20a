"""SWIFT's rule for choosing a skip set: random sets, the best score ever seen stays in use (arXiv 2410.06916)."""

import math

import numpy as np

from forerun.core.sublayers import SkipSet, skippable
from tests.drafting.layer_skip.skip_emulator import NUM_LAYERS, NUM_SKIPPED, random_set

INTERVAL = 25  # every so many candidates one is the linear model's
RIDGE = 10.0


class BestObserved:
    """Random sets of 34 sublayers, scored once each.

    Args:
        is_guided: every 25th candidate is the best by a ridge regression of all scores. That is kinder than the paper's
            Gaussian process, which takes seconds and proposes corners of a cube.
    """

    def __init__(self, seed: int, *, is_guided: bool) -> None:
        self._rng = np.random.default_rng(seed)
        self._is_guided = is_guided
        self._items = skippable(NUM_LAYERS)
        self._sets: list[SkipSet] = []
        self._logits: list[float] = []
        self.skipped: SkipSet = frozenset()
        self.observed = -1.0

    def candidate(self) -> SkipSet:
        if self._is_guided and (len(self._sets) + 1) % INTERVAL == 0:
            return self._guess()
        return random_set(self._rng)

    def record(self, skipped: SkipSet, num_hits: int, num_rows: int) -> None:
        self._sets.append(skipped)
        self._logits.append(math.log((num_hits + 0.5) / (num_rows - num_hits + 0.5)))
        if num_hits / num_rows > self.observed:
            self.skipped, self.observed = skipped, num_hits / num_rows

    def _guess(self) -> SkipSet:
        rows = np.array([[float(item in skipped) for item in self._items] for skipped in self._sets])
        rows -= rows.mean(axis=0)
        logits = np.array(self._logits)
        precision = rows.T @ rows + RIDGE * np.eye(len(self._items))
        good = np.linalg.solve(precision, rows.T @ (logits - logits.mean()))
        return frozenset(self._items[place] for place in (-good).argsort()[:NUM_SKIPPED].tolist())
