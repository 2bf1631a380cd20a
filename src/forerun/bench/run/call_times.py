"""Seconds of short calls: blocks of them, in turn with what they are compared with, and whether others disturbed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from math import ceil
from statistics import quantiles
from time import perf_counter, thread_time
from typing import Any, Final

import torch

from forerun.bench.run.machine import lost_share

Call = Callable[[], Any]
BLOCK_S: Final = 0.5e-3  # long against the clock's reading, short against a time slice, so that most blocks are whole
MAX_CALLS: Final = 1000
LEAST_S: Final = 1e-9  # for clocks too coarse to see a call
MIN_BLOCKS: Final = 5
MAX_BLOCKS: Final = 201
MAX_LOST: Final = 0.05  # a block that lost more of its time to others says nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The median of some numbers, and their first and third quartile."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of at least one number."""
        low, middle, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else 3 * list(values)
        return cls(median=middle, low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Some calls, one after the other.

    Args:
        call_s: seconds per call.
        lost: share of the time in which the calling thread did not run; 0 on a GPU, where the thread only waits.
    """

    call_s: float
    lost: float = 0.0


def time_block(calls: Sequence[Call], device: torch.device) -> Block:
    """Time calls that follow each other: by events on a GPU, by the clock elsewhere."""
    if device.type == "cuda":
        return time_cuda_block(calls, device)
    began, worked = perf_counter(), thread_time()
    for call in calls:
        call()
    thread_s, wall_s = thread_time() - worked, perf_counter() - began
    return Block(call_s=wall_s / len(calls), lost=lost_share(wall_s, thread_s))


def time_cuda_block(calls: Sequence[Call], device: torch.device) -> Block:
    with torch.cuda.device(device):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for call in calls:
            call()
        end.record()
        end.synchronize()
    return Block(call_s=start.elapsed_time(end) / 1e3 / len(calls))


class Rotation:
    """Calls that do the same with different data, taken in turn."""

    def __init__(self, calls: Sequence[Call], device: torch.device) -> None:
        self._device, self._calls = device, cycle(calls)
        calls[0]()  # whatever a first call sets up
        warm = time_block(calls[-1:], device)
        self._num_calls = min(MAX_CALLS, ceil(BLOCK_S / max(warm.call_s, LEAST_S)))

    def next_block(self) -> Block:
        return time_block(list(islice(self._calls, self._num_calls)), self._device)


def time_in_turn(sides: Sequence[Sequence[Call]], device: torch.device, *, budget_s: float) -> list[tuple[Block, ...]]:
    """A B A B ...: rounds with one block of every side, after a warm-up, until the budget is spent.

    Args:
        sides: for each side the calls to go round.
        budget_s: seconds, warm-up included; MIN_BLOCKS rounds are made whatever they take.
    """
    deadline = perf_counter() + budget_s
    rotations = [Rotation(calls, device) for calls in sides]
    rounds: list[tuple[Block, ...]] = []
    while len(rounds) < MIN_BLOCKS or (len(rounds) < MAX_BLOCKS and perf_counter() < deadline):
        rounds.append(tuple(rotation.next_block() for rotation in rotations))
    return rounds


def undisturbed(rounds: Sequence[tuple[Block, ...]]) -> Sequence[tuple[Block, ...]]:
    """The rounds in which no block lost time to others; where there are too few, the least disturbed ones.

    A call longer than a time slice is never left alone on a busy machine. With one thread what was lost is known, and
    taken off; with several it is not, since threads wait for each other, and the time stays as it was. Either way the
    blocks still tell what they lost, so that such a time can be marked.
    """
    quiet = [blocks for blocks in rounds if most_lost(blocks) <= MAX_LOST]
    if len(quiet) >= MIN_BLOCKS:
        return quiet
    least = sorted(rounds, key=most_lost)[:MIN_BLOCKS]
    return [tuple(map(without_loss, blocks)) for blocks in least] if torch.get_num_threads() == 1 else least


def without_loss(block: Block) -> Block:
    """The block in the time in which its thread ran."""
    return replace(block, call_s=max(LEAST_S, block.call_s * (1.0 - block.lost)))


def most_lost(blocks: tuple[Block, ...]) -> float:
    return max(block.lost for block in blocks)
