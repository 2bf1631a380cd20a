"""How memory grows: samples over time, and the slope with its bounds."""

import time
from itertools import combinations
from math import sqrt
from statistics import median
from typing import Final

from tests.server.strain.process import ServingProcess

WARM_SHARE: Final = 0.25  # of the time, in which pools and caches come to their size
MAX_SAMPLES: Final = 400  # for the slope: pairs of them are compared
NORMAL_95: Final = 1.96
S_PER_H: Final = 3600.0


class Growth:
    """Memory of a server and its children over time, and of the server's own process."""

    def __init__(self, server: ServingProcess) -> None:
        self._server = server
        self._began = time.monotonic()
        self._samples: list[tuple[float, float]] = []
        self._own: list[tuple[float, float]] = []

    def sample_every(self, seconds: float) -> None:
        """Take a sample where the last one is older."""
        now = time.monotonic() - self._began
        if not self._samples or now - self._samples[-1][0] >= seconds:
            found = self._server.footprint()
            self._samples.append((now, found.rss_mib))
            self._own.append((now, found.own_rss_mib))

    def series(self) -> list[tuple[int, float, float]]:
        """Some samples to look at: second, MiB of all and of the server's own process."""
        step = max(1, len(self._samples) // 20)
        both = list(zip(self._samples, self._own, strict=True))[::step]
        return [(round(second), round(mib, 1), round(own, 1)) for (second, mib), (_, own) in both]

    def since_warm(self) -> float:
        """MiB of all from the end of the first part to the end, as medians of ten samples."""
        values = [mib for _, mib in warm(self._samples)]
        return median(values[-10:]) - median(values[:10])

    def slope(self, *, of_all: bool) -> tuple[float, float]:
        """MiB an hour, and the upper end of its 95 % interval; of all processes or of the server's own."""
        return theil_sen(warm(self._samples if of_all else self._own))


def warm(samples: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Samples after the first part of the time."""
    return samples[int(WARM_SHARE * len(samples)) :]


def theil_sen(samples: list[tuple[float, float]]) -> tuple[float, float]:
    """The median of the slopes between all pairs, and the upper end of its 95 % interval, by the hour.

    Source: Sen, Estimates of the regression coefficient based on Kendall's tau, 1968. It takes samples for independent;
    steps of an allocator are not, so that a longer run is worth more than closer samples.
    """
    samples = samples[:: max(1, len(samples) // MAX_SAMPLES)]
    number = len(samples)
    slopes = sorted((second[1] - first[1]) / (second[0] - first[0]) for first, second in combinations(samples, 2))
    if not slopes:
        return 0.0, 0.0
    spread = NORMAL_95 * sqrt(number * (number - 1) * (2 * number + 5) / 18)
    upper = min(len(slopes) - 1, round((len(slopes) + spread) / 2))
    return S_PER_H * median(slopes), S_PER_H * slopes[upper]
