"""Time short calls in blocks, alternating with the calls they are compared with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from math import ceil
from statistics import quantiles
from time import perf_counter
from typing import Any, Final

import torch

Call = Callable[[], Any]
BLOCK_S: Final = 0.5e-3  # much longer than reading the clock, much shorter than a time slice of the scheduler
MAX_CALLS: Final = 1000
LEAST_S: Final = 1e-9  # for clocks too coarse to measure a call
MIN_BLOCKS: Final = 5
MAX_BLOCKS: Final = 201


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The median of some numbers, and their first and third quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of at least one number."""
        low, middle, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else 3 * list(values)
        return cls(median=middle, low=low, high=high)


def time_block(calls: Sequence[Call], device: torch.device) -> float:
    """Seconds per call of consecutive calls, by events on a GPU, by the clock elsewhere."""
    if device.type == "cuda":
        return _time_cuda_block(calls, device)
    began = perf_counter()
    for call in calls:
        call()
    return (perf_counter() - began) / len(calls)


def _time_cuda_block(calls: Sequence[Call], device: torch.device) -> float:
    with torch.cuda.device(device):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for call in calls:
            call()
        end.record()
        end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / len(calls)


class Rotation:
    """Calls that do the same with different data, taken in turn."""

    def __init__(self, calls: Sequence[Call], device: torch.device) -> None:
        self._device = device
        self._calls = cycle(calls)
        calls[0]()  # a first call may allocate or compile
        warm_s = time_block(calls[-1:], device)
        self._num_calls = min(MAX_CALLS, ceil(BLOCK_S / max(warm_s, LEAST_S)))

    def next_block(self) -> float:
        return time_block(list(islice(self._calls, self._num_calls)), self._device)


def time_in_turn(sides: Sequence[Sequence[Call]], device: torch.device, *, budget_s: float) -> list[tuple[float, ...]]:
    """A B A B ...: after a warm-up, rounds with one block of every side while the budget lasts; seconds per call.

    Args:
        sides: the calls of each side, which are used in turn.
        budget_s: seconds, warm-up included; at least MIN_BLOCKS rounds are made.
    """
    deadline = perf_counter() + budget_s
    rotations = [Rotation(calls, device) for calls in sides]
    rounds: list[tuple[float, ...]] = []
    while len(rounds) < MIN_BLOCKS or (len(rounds) < MAX_BLOCKS and perf_counter() < deadline):
        rounds.append(tuple(rotation.next_block() for rotation in rotations))
    return rounds
