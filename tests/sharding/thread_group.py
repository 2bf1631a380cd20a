"""Ranks as threads of this process: a rank group without any transport."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

import torch
from torch import Tensor

from forerun.backends.torch.backend import REFERENCE
from forerun.checkpoints.typed_weights import LoadedWeights
from forerun.core.model_spec import ModelSpec
from forerun.core.threads import inference
from forerun.model.executor import Told
from forerun.model.rank_group import sum_in_order
from forerun.model.runner import Runner
from forerun.model.tree_cache import TreeCache
from forerun.model.warm_texts import WarmTexts
from forerun.sharding.executor import SharedExecutor
from forerun.sharding.follower import Follower
from forerun.sharding.messages import KINDS, to_frame
from forerun.sharding.plan import plan_shards
from forerun.sharding.weights import ShardedWeights
from forerun.wires.frames import FrameReader
from tests.tiny import Weights

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


@contextmanager
def shared_runner(spec: ModelSpec, weights: Weights, num_ranks: int, *, capacity: int) -> Iterator[Runner]:
    """The leader of a model whose other ranks are threads, which get its messages as processes do."""
    plans = plan_shards(spec, num_ranks, group_size=1)
    meeting = Meeting(barrier=threading.Barrier(num_ranks))
    told = [SimpleQueue[bytes | None]() for _ in plans[1:]]

    def executor(rank: int, cache: TreeCache) -> SharedExecutor:
        plan = plans[rank]
        own = ShardedWeights(LoadedWeights(dict(weights)), spec, plan)
        group = ThreadGroup(rank=rank, num_ranks=num_ranks, meeting=meeting)
        return SharedExecutor(spec, own, cache, backend=REFERENCE, plan=plan, group=group)

    def follow(rank: int) -> None:
        try:
            cache = TreeCache(plans[rank].local(spec), capacity, dtype=torch.float64, device="cpu")
            follower = Follower(cache, WarmTexts(cache, 0), executor(rank, cache))
            reader = FrameReader(KINDS)
            with inference():
                for frame in iter(told[rank - 1].get, None):
                    for message in reader.feed(frame):
                        follower.follow(message)
        except BaseException:
            meeting.barrier.abort()
            raise

    @contextmanager
    def tell(what: Told) -> Iterator[None]:
        for queue in told:
            queue.put(to_frame(what))
        yield

    with ThreadPoolExecutor(num_ranks) as pool:
        followers = [pool.submit(follow, rank) for rank in range(1, num_ranks)]
        try:
            yield Runner(
                plans[0].local(spec), None, backend=REFERENCE, capacity=capacity, dtype=torch.float64, device="cpu",
                make_executor=partial(executor, 0), tell=tell,
            )  # fmt: skip
        finally:
            for queue in told:
                queue.put(None)
        for follower in followers:
            follower.result(WAIT_S)
