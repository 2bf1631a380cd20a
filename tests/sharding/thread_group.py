"""Ranks as threads of this process: a rank group without any transport."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from forerun.model.rank_group import sum_in_order

ResultT = TypeVar("ResultT")
WAIT_S = 30.0  # for the other threads, one of which may have failed


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """Where threads put what they have for all."""

    barrier: threading.Barrier
    parts: dict[int, Tensor] = field(default_factory=dict)


@dataclass(kw_only=True)
class ThreadGroup:
    """See RankGroup."""

    rank: int
    num_ranks: int
    meeting: Meeting

    def add_partials(self, partial_TH: Tensor, residual_TH: Tensor) -> Tensor:
        return sum_in_order(self._exchange(partial_TH), residual_TH)

    def join_columns(self, part_TN: Tensor) -> Tensor:
        return torch.cat(self._exchange(part_TN), 1)

    def lose(self) -> None:
        self.meeting.barrier.abort()

    def _exchange(self, part: Tensor) -> list[Tensor]:
        self.meeting.parts[self.rank] = part
        self.meeting.barrier.wait(WAIT_S)
        parts = [self.meeting.parts[rank] for rank in range(self.num_ranks)]
        self.meeting.barrier.wait(WAIT_S)
        return parts


def on_ranks(num_ranks: int, work: Callable[[ThreadGroup], ResultT]) -> list[ResultT]:
    """What `work` gives on every rank."""
    meeting = Meeting(barrier=threading.Barrier(num_ranks))

    def run(rank: int) -> ResultT:
        try:
            return work(ThreadGroup(rank=rank, num_ranks=num_ranks, meeting=meeting))
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(num_ranks) as pool:
        return list(pool.map(run, range(num_ranks)))
