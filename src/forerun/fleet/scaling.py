"""Decides how many replicas there should be."""

from collections.abc import Callable, Mapping
from time import monotonic
from typing import Final

MORE_AFTER_S: Final = 3.0  # in which requests waited on every replica
FEWER_AFTER_S: Final = 120.0  # in which one replica had nothing to do; loading a model again costs more than keeping it


class Scaling:
    """The wanted number of replicas: one more while requests wait everywhere, one fewer if one is never needed.

    Args:
        least: number of replicas that always run.
        most: limit on replicas; None: `least`.
        clock: returns seconds.
    """

    def __init__(self, least: int, most: int | None, *, clock: Callable[[], float] = monotonic) -> None:
        self._least = least
        self._most = most or least
        self._clock = clock
        self._waited_since = self._idle_since = clock()

    def wanted(self, num_open: Mapping[int, int], *, num_all: int) -> int:
        """How many replicas there should be; differs from `num_all` by one at most.

        Args:
            num_open: requests of each ready replica, running or waiting.
            num_all: replicas that run or are being started.
        """
        now_s = self._clock()
        if not num_open or min(num_open.values()) < 2:  # one runs, others wait
            self._waited_since = now_s
        if sum(num_open.values()) >= max(1, num_all - 1):
            self._idle_since = now_s
        if now_s - self._waited_since > MORE_AFTER_S and len(num_open) == num_all < self._most:
            return num_all + 1
        if now_s - self._idle_since > FEWER_AFTER_S and num_all > self._least:
            self._idle_since = now_s
            return num_all - 1
        return num_all
