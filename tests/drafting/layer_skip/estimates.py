"""What a penalty model thinks of one set."""

import math
from typing import NamedTuple

from forerun.core.sublayers import SkipSet
from forerun.drafting.layer_skip.skip_penalties import PenaltyModel, sigmoid


class Estimate(NamedTuple):
    """Log-odds of a hit, and their standard deviation."""

    logit: float
    deviation: float

    @property
    def chance(self) -> float:
        """The mean of a hit: less sure log-odds are nearer to one half (MacKay's approximation)."""
        return sigmoid(self.logit / math.sqrt(1.0 + math.pi * self.deviation**2 / 8.0))


def estimate(model: PenaltyModel, skipped: SkipSet) -> Estimate:
    """Of a set, by its features alone."""
    row = model.features(skipped)
    return Estimate(float(row @ model._mean), math.sqrt(float(row @ model._covariance @ row)))
