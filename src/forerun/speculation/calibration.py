"""What a draft's probabilities are worth: how often the target agreed, learnt as the text is written."""

import math
from collections.abc import Sequence
from typing import Final

NUM_BINS: Final = 10
BIN_WIDTH: Final = 0.5  # in log-probability; the last bin is open
NUM_RANKS: Final = 4  # the last one is open
NUM_DEPTHS: Final = 3  # 1, 2 to 3, deeper
PRIOR_TRIALS: Final = 20.0  # how many trials the draft's own word counts as
MEMORY: Final = 2000.0  # trials after which a cell forgets


class AcceptanceTable:
    """The share of guesses that came true, by (bin of the draft's log-probability, depth, rank among siblings).

    Source: the calibration of EAGLE-2 (arXiv 2406.16858, section 3.2), made online; SwiftSpec ranks by raw log q.
    """

    def __init__(self) -> None:
        num_cells = NUM_BINS * NUM_RANKS * NUM_DEPTHS
        self._num_true = [0.0] * num_cells
        self._num_tried = [0.0] * num_cells

    def cells(self, log_probs: Sequence[float], depth: int) -> list[int]:
        """The cell of each sibling, likeliest first."""
        place = 0 if depth == 1 else 1 if depth <= 3 else 2
        bins = (int(min(NUM_BINS - 1, max(0.0, -log_prob) / BIN_WIDTH)) for log_prob in log_probs)
        return [(bin_ * NUM_DEPTHS + place) * NUM_RANKS + min(rank, NUM_RANKS - 1) for rank, bin_ in enumerate(bins)]

    def log_prob(self, cell: int, log_prob: float) -> float:
        """The chance of coming true, as a logarithm: what was seen, mixed with what the draft says."""
        num_true = self._num_true[cell] + PRIOR_TRIALS * math.exp(log_prob)
        return math.log(num_true / (self._num_tried[cell] + PRIOR_TRIALS))

    def count(self, cell: int, came_true: bool) -> None:
        """Take one guess's outcome."""
        if self._num_tried[cell] >= MEMORY:
            self._num_true[cell] *= 0.5
            self._num_tried[cell] *= 0.5
        self._num_true[cell] += came_true
        self._num_tried[cell] += 1.0
