"""Confidence intervals for a mean or a ratio of means: a studentised bootstrap over prompts.

Prompts are resampled together with all their measurements. The two speeds of a ratio stay paired, because prompts
differ far more than contestants do. Repeats of a prompt count as one value, because they give no information about
other prompts.

Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), 12.5. The quantiles are those of
(resampled - observed) / the resample's own standard error, of the logarithm. They have the stated coverage for as few
as five prompts, where plain percentile intervals are too narrow. The standard error of a ratio of means is that of its
linear approximation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import atan2, cos, pi, sin, sqrt
from typing import Final

import numpy as np
import numpy.typing as npt

NUM_RESAMPLES: Final = 4_000
MIN_PROMPTS: Final = 5  # with fewer, too many resamples consist mostly of one prompt and have no spread
CONFIDENCE: Final = 0.95
MAX_DISTANCE: Final = 50.0  # of the logarithm; wider intervals are not reported

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value, its 95 % confidence interval, and the number of prompts.

    low and high are None for fewer than five prompts, and if the prompts do not bound the value.
    """

    value: float
    low: float | None
    high: float | None
    num_prompts: int


class Resamples:
    """A ratio of means, and the ratios of many resamples of its prompts.

    Args:
        values: a positive number per prompt.
        base: the denominators of the same prompts; None for a plain mean.
    """

    def __init__(
        self, values: Sequence[float], base: Sequence[float] | None = None, *, num_resamples: int = NUM_RESAMPLES
    ) -> None:
        assert values, "a mean of no prompts"
        above = np.asarray(values, dtype=np.float64)
        below = np.ones_like(above) if base is None else np.asarray(base, dtype=np.float64)
        assert above.shape == below.shape, f"{above.size} values and {below.size} denominators"
        self._num_prompts = above.size
        self._log_ratio = float(np.log(above.mean()) - np.log(below.mean()))
        above = above / above.mean()  # so that no square overflows
        below = below / below.mean()
        moments = np.stack([above, below, above**2, below**2, above * below], axis=1)
        self._error = float(_log_ratios(moments.mean(axis=0)[None])[1][0])
        self._scores = self._score(moments, num_resamples) if self.is_enough else np.empty(0)

    @property
    def is_enough(self) -> bool:
        return self._num_prompts >= MIN_PROMPTS

    def estimate(self) -> Estimate:
        """The value with its confidence interval."""
        low: float | None = None
        high: float | None = None
        if self.is_enough:
            tail = (1 - CONFIDENCE) / 2
            lower, upper = np.quantile(self._scores, (tail, 1 - tail), method="inverted_cdf")
            low = self._bound(upper)
            high = self._bound(lower)
        return Estimate(value=float(np.exp(self._log_ratio)), low=low, high=high, num_prompts=self._num_prompts)

    def _bound(self, score: float) -> float | None:
        """An end of the interval; None if the prompts do not bound it, for example if all but one are equal."""
        distance = score * self._error if self._error > 0 else 0.0
        return float(np.exp(self._log_ratio - distance)) if abs(distance) < MAX_DISTANCE else None

    def chance_of_at_least(self, bound: float) -> float:
        """The one-sided p-value: how likely a value this small would be if the true one were `bound`.

        The larger of the resamples' p-value and that of Student's t, because with twenty prompts the resamples'
        p-values are too small far out in the tail, which matters with many rows. Below 0.025 the whole interval lies
        below the bound. 1 for too few prompts.
        """
        if not self.is_enough:
            return 1.0
        distance = self._log_ratio - float(np.log(bound))
        if self._error == 0.0:
            return 1.0 if distance >= 0 else 1 / (self._scores.size + 1)
        num_below = int(np.count_nonzero(self._scores <= distance / self._error))
        degrees = self._num_prompts - 1
        return max(
            (num_below + 1) / (self._scores.size + 1), student_tail(-distance / self._error * sqrt(degrees), degrees)
        )

    def _score(self, moments: Array, num_resamples: int) -> Array:
        """The distance of each resample from the observed value in its standard errors; infinite if these are zero.

        The moments are of numbers with mean 1, so the logarithm of a resample's ratio is its distance.
        """
        counts = self._counts(np.random.default_rng(0), num_resamples)
        log_ratios, errors = _log_ratios(counts @ moments / self._num_prompts)
        log_ratios[np.abs(log_ratios) < 1e-12] = 0.0  # rounding
        beyond = np.where(log_ratios == 0.0, 0.0, np.copysign(np.inf, log_ratios))
        return np.divide(log_ratios, errors, out=beyond, where=errors > 0)

    def _counts(self, generator: np.random.Generator, num_resamples: int) -> Array:
        """How often each prompt is in each resample, by one bincount, which is much faster than a multinomial."""
        size = (num_resamples, self._num_prompts)
        drawn = generator.integers(self._num_prompts, size=size) + np.arange(num_resamples)[:, None] * size[1]
        return np.bincount(drawn.ravel(), minlength=size[0] * size[1]).reshape(size).astype(np.float64)


def estimate(values: Sequence[float], base: Sequence[float] | None = None) -> Estimate:
    """The mean of the values, divided by the mean of `base` if given, with its confidence interval."""
    return Resamples(values, base).estimate()


def student_tail(score: float, degrees: int) -> float:
    """P(t >= score) for Student's t.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    angle = atan2(score, sqrt(degrees))
    is_odd = degrees % 2
    term, total = (cos(angle), 0.0) if is_odd else (1.0, 0.0)
    for step in range(2 + is_odd, degrees + 1, 2):
        total += term
        term *= (step - 1) / step * cos(angle) ** 2
    inside = 2 / pi * (angle + sin(angle) * total) if is_odd else sin(angle) * total
    return max((1 - inside) / 2, 0.0)


def _log_ratios(moments: Array) -> tuple[Array, Array]:
    """The logarithms of the ratios and their standard errors, from each row's means of a, b, a^2, b^2, ab."""
    above, below, above2, below2, product = moments.T
    variance = above2 / above**2 + below2 / below**2 - 2 * product / (above * below)
    variance[variance < 1e-14] = 0.0  # rounding
    return np.log(above / below), np.sqrt(variance)
