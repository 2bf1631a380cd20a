"""What a pass of a model costs by its rows, measured."""

from collections.abc import Sequence
from itertools import accumulate
from statistics import median
from time import perf_counter
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from forerun.core.pace import Pace
from forerun.model.inputs import ForwardInput
from forerun.model.runner import Runner

MOST_REPEATS: Final = 15
LEAST_REPEATS: Final = 3


@torch.inference_mode()
def measure_pace(runner: Runner, widths: Sequence[int], *, context: int = 64, budget_s: float = 0.3) -> Pace:
    """Seconds of a pass by its rows: medians of passes of all widths in turn, made not to fall. Empties the cache.

    Args:
        widths: numbers of rows, ascending.
        context: tokens before them, as far as the cache has room.
        budget_s: no further repeat once this has passed.
    """
    runner.forget()
    room = runner.cache.capacity - widths[-1]
    runner.sync([0] * max(0, min(context, room)))
    times: dict[int, list[float]] = {width: [] for width in widths}
    began = perf_counter()
    for repeat in range(MOST_REPEATS):
        if repeat >= LEAST_REPEATS and perf_counter() - began > budget_s:
            break
        for width in widths:
            times[width].append(time_pass(runner, width))
    runner.forget()
    return Pace(steps=tuple(zip(widths, accumulate((median(times[width]) for width in widths), max), strict=True)))


def time_pass(runner: Runner, num_rows: int) -> float:
    """Seconds of one pass, its logits read."""
    cache = runner.cache
    start = cache.committed_len
    began = perf_counter()
    logits = runner.forward(
        ForwardInput(
            token_ids=[0] * num_rows,
            positions=list(range(start, start + num_rows)),
            first_slot=cache.reserve(num_rows),
            prefix_len=start,
            ancestry=star(num_rows) if num_rows > 1 else None,
            num_logit_rows=num_rows,
        )
    )
    logits.argmax(-1).tolist()  # a device has finished only when its result is here
    elapsed = perf_counter() - began
    cache.truncate(start)
    return elapsed


def star(num_rows: int) -> NDArray[np.bool_]:
    """The ancestry of a root and its children: a tree's mask costs what it costs whatever the tree."""
    ancestry = np.eye(num_rows, dtype=np.bool_)
    ancestry[:, 0] = True
    return ancestry
