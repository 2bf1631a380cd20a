"""The acceptance penalty of skipping each sublayer: an online Bayesian logistic ridge regression."""

import math
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from forerun.core.sublayers import NOTHING, SkipSet, skippable

Floats: TypeAlias = npt.NDArray[np.float64]

ROWS_PER_EVALUATION: Final = 32
WHOLE_LOGIT: Final = 4.5  # prior log-odds that a guess of the whole model is correct
WHOLE_DEVIATION: Final = 0.7  # standard deviation of that prior
WHOLE_PENALTY: Final = (
    11.0  # log-odds lost if all is skipped; from hit rates of 0.40 at 45 % of 13B, 0.26 at 50 % of 70B
)
PENALTY_SPREAD: Final = 1.6  # standard deviation of a sublayer's penalty as a share of its mean
OUTER_PENALTY: Final = 3.0  # penalty of the first and the last layer as a multiple of a middle layer's
DISCOUNT: Final = 0.98  # factor on the weight of older evidence per hundred evaluations
NEWTON_STEPS: Final = 12
CLOSE: Final = 1e-6  # tolerance of Newton's method, in log-odds


class PenaltyModel:
    """log-odds(S) = intercept - the sum of the penalties of the sublayers in S, normally distributed.

    Each batch of hits updates the posterior by a Laplace approximation along its feature vector. The covariance is
    stored, so no linear system has to be solved: O(items^2) per batch.

    Source: own. SWIFT (arXiv 2410.06916) fits a Gaussian process to the same scores; it ranks unseen sets no better.

    Args:
        num_layers, absent: layers of the model, and sublayers that they lack; its skippable sublayers are the items.
    """

    def __init__(self, num_layers: int, absent: SkipSet = NOTHING) -> None:
        items = skippable(num_layers, absent)
        self._place = {item: number for number, item in enumerate(items, start=1)}
        middle = (num_layers - 1) / 2
        shape = np.array([1.0 + (OUTER_PENALTY - 1.0) * abs(layer / middle - 1.0) ** 4 for layer, _ in items])
        penalties = shape * (WHOLE_PENALTY / shape.sum())
        deviations = np.concatenate(([WHOLE_DEVIATION], PENALTY_SPREAD * penalties))
        self._prior_mean: Floats = np.concatenate(([WHOLE_LOGIT], penalties))
        self._prior_precision: Floats = deviations**-2.0
        self._mean = self._prior_mean.copy()
        self._covariance: Floats = np.diag(1.0 / self._prior_precision)
        self._factor: Floats | None = None
        self._rows_left = 100.0 * ROWS_PER_EVALUATION  # until the next discount

    @property
    def intercept(self) -> float:
        return float(self._mean[0])

    @property
    def penalties(self) -> Floats:
        """Mean penalty [items] in the order of `skippable`."""
        return self._mean[1:]

    def features(self, skipped: SkipSet) -> Floats:
        """[1 + items]: 1 for the intercept, -1 for skipped sublayers."""
        row = np.zeros(len(self._mean))
        row[0] = 1.0
        row[[self._place[sublayer] for sublayer in skipped]] = -1.0
        return row

    def told(self, skipped: SkipSet, num_hits: float, num_rows: float, weight: float = 1.0) -> None:
        """Update the posterior with a batch of scored rows.

        Args:
            num_hits: how many of `num_rows` positions the rest of the model predicted correctly.
            weight: weight of a row. More rows of a set with many rows say little about other sets, since no set is
                exactly the sum of its parts.
        """
        num_hits = weight * num_hits
        num_rows = weight * num_rows
        if num_rows <= 0.0:
            return
        row = self.features(skipped)
        direction = self._covariance @ row
        variance = float(row @ direction)
        before = float(row @ self._mean)
        after = mode(before, variance, num_hits, num_rows)
        chance = sigmoid(after)
        information = num_rows * chance * (1.0 - chance)
        self._mean += direction * ((after - before) / variance)
        self._covariance -= np.multiply.outer(direction, direction * (information / (1.0 + information * variance)))
        self._factor = None
        self._rows_left -= num_rows
        if self._rows_left <= 0.0:
            self._rows_left = 100.0 * ROWS_PER_EVALUATION
            self.forget(1.0 - DISCOUNT)

    def estimates(self, rows: Floats) -> tuple[Floats, Floats]:
        """Log-odds and their standard deviations, [sets] each, of sets given by their features [sets, 1 + items]."""
        return rows @ self._mean, np.sqrt(((rows @ self._covariance) * rows).sum(axis=1))

    def sample(self, rng: np.random.Generator) -> tuple[float, Floats]:
        """A sample of intercept and penalties [items] from the posterior (Thompson sampling)."""
        if self._factor is None:
            self._factor = np.linalg.cholesky(self._covariance).astype(np.float64, copy=False)
        drawn = self._mean + self._factor @ rng.standard_normal(len(self._mean))
        return float(drawn[0]), drawn[1:]

    def forget(self, share: float) -> None:
        """Discount all evidence by this share, in [0, 1), towards the prior."""
        precision = (1.0 - share) * np.linalg.inv(self._covariance)
        weighted = precision @ self._mean + share * self._prior_precision * self._prior_mean
        precision[np.diag_indices_from(precision)] += share * self._prior_precision
        covariance = np.linalg.inv(precision)
        self._covariance = (covariance + covariance.T) / 2.0
        self._mean = self._covariance @ weighted
        self._factor = None


def mode(before: float, variance: float, num_hits: float, num_rows: float) -> float:
    """The posterior mode of log-odds after hits, with a normal prior around `before`: bounded Newton steps."""
    low = before - variance * (num_rows - num_hits)
    high = before + variance * num_hits
    logit = before
    for _ in range(NEWTON_STEPS):
        chance = sigmoid(logit)
        slope = (logit - before) / variance - num_hits + num_rows * chance
        if slope > 0.0:
            high = logit
        else:
            low = logit
        step = slope / (1.0 / variance + num_rows * chance * (1.0 - chance))
        if abs(step) < CLOSE:
            break
        logit = logit - step if low < logit - step < high else (low + high) / 2.0
    return logit


def sigmoid(logit: float) -> float:
    return 1.0 / (1.0 + math.exp(-logit)) if logit > -700.0 else 0.0


def sigmoids(logits: Floats) -> Floats:
    return 0.5 + 0.5 * np.tanh(0.5 * logits)
