"""What a draft's probabilities are worth: how often the target agreed, learnt as the text is written."""

import math
from collections.abc import Sequence
from typing import Final

NUM_BINS: Final = 10
BIN_WIDTH: Final = 0.5  # in log-probability; the last bin is open
NUM_RANKS: Final = 4  # the last one is open
NUM_DEPTHS: Final = 3  # 1, 2 to 3, deeper
CELLS_PER_BIN: Final = NUM_DEPTHS * NUM_RANKS
PRIOR_TRIALS: Final = 20.0  # how many trials the draft's own word counts as for its bin, and the bin's for a cell
LEAST_LOG_PROB: Final = -600.0  # a chance that is a float, and has a logarithm, also after many failures
MEMORY: Final = 2000.0  # trials after which a cell forgets


class AcceptanceTable:
    """The share of guesses that came true, by (bin of the draft's log-probability, depth, rank among siblings).

    A cell that has seen little takes the word of its bin, and a bin that has seen little the draft's own.

    Source: the calibration of EAGLE-2 (arXiv 2406.16858, section 3.2), made online; SwiftSpec ranks by raw log q.
    """

    def __init__(self) -> None:
        self._num_true = [0.0] * (NUM_BINS * CELLS_PER_BIN + NUM_BINS)  # the bins themselves stand behind the cells
        self._num_tried = [0.0] * len(self._num_true)

    def cells(self, log_probs: Sequence[float], depth: int) -> list[int]:
        """The cell of each sibling, likeliest first."""
        place = 0 if depth == 1 else 1 if depth <= 3 else 2
        bins = [int(min(NUM_BINS - 1, max(0.0, -log_prob) / BIN_WIDTH)) for log_prob in log_probs]
        return [(bin_ * NUM_DEPTHS + place) * NUM_RANKS + min(rank, NUM_RANKS - 1) for rank, bin_ in enumerate(bins)]

    def log_prob(self, cell: int, log_prob: float) -> float:
        """The chance of coming true, as a logarithm: what was seen, mixed with what the draft says."""
        num_true, num_tried, bin_ = self._num_true, self._num_tried, bin_of(cell)
        said = math.exp(max(log_prob, LEAST_LOG_PROB))
        chance = (num_true[bin_] + PRIOR_TRIALS * said) / (num_tried[bin_] + PRIOR_TRIALS)
        return math.log((num_true[cell] + PRIOR_TRIALS * chance) / (num_tried[cell] + PRIOR_TRIALS))

    def count(self, cell: int, came_true: bool) -> None:
        """Take one guess's outcome."""
        for place in (bin_of(cell), cell):
            if self._num_tried[place] >= MEMORY:
                self._num_true[place] *= 0.5
                self._num_tried[place] *= 0.5
            self._num_true[place] += came_true
            self._num_tried[place] += 1.0


def bin_of(cell: int) -> int:
    """Where the bin of a cell counts."""
    return NUM_BINS * CELLS_PER_BIN + cell // CELLS_PER_BIN
