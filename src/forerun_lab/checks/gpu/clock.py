"""Seconds of work on the device: recorded as a CUDA graph, replayed between two events.

Without a GPU everything runs once, by the processor's clock: enough to see that it runs.
"""

from collections.abc import Callable, Sequence
from time import perf_counter

import torch

from forerun_lab.bench.run.call_times import Call, Spread, time_in_turn

LEAST_BLOCK_S = 2e-3  # of replays between two events: long against the start of a graph
MOST_REPLAYS = 1000


def time_sides(sides: Sequence[Sequence[Call]], device: str, *, budget_s: float) -> list[Spread]:
    """Seconds of one call of each side. The calls of a side are done one after the other, the sides in turn."""
    if device != "cuda":
        return [once(calls) for calls in sides]
    works = [repeated(record(calls)) for calls in sides]
    rounds = time_in_turn([[work] for work, _ in works], torch.device(device), budget_s=budget_s)
    counts = [count * len(calls) for calls, (_, count) in zip(sides, works, strict=True)]
    columns = zip(*rounds, strict=True)
    return [Spread.of([call_s / count for call_s in column]) for column, count in zip(columns, counts, strict=True)]


def time_calls(calls: Sequence[Call], device: str, *, budget_s: float) -> Spread:
    """Seconds of one of these calls, which are done one after the other."""
    return time_sides([calls], device, budget_s=budget_s)[0]


def time_replay(replay: Call, device: str, *, budget_s: float) -> Spread:
    """Seconds of what is recorded already."""
    if device != "cuda":
        return once([replay])
    work, count = repeated(replay)
    rounds = time_in_turn([[work]], torch.device(device), budget_s=budget_s)
    return Spread.of([call_s / count for (call_s,) in rounds])


def once(calls: Sequence[Call]) -> Spread:
    began = perf_counter()
    for call in calls:
        call()
    return Spread.of([(perf_counter() - began) / len(calls)])


def record(calls: Sequence[Call]) -> Call:
    """What replays a graph of all these calls."""
    once(calls)  # compiles, and loads what was compiled
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        once(calls)
    return graph.replay


def repeated(replay: Call) -> tuple[Callable[[], None], int]:
    """The work as often in a row as LEAST_BLOCK_S needs, and how often that is."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    replay()
    start.record()
    for _ in range(3):
        replay()
    end.record()
    end.synchronize()
    count = max(1, min(MOST_REPLAYS, round(LEAST_BLOCK_S / (start.elapsed_time(end) / 1e3 / 3))))

    def work() -> None:
        for _ in range(count):
            replay()

    return work, count
