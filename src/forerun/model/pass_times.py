"""Measures how long a forward pass takes by its number of rows."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from time import perf_counter
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from forerun.core.pace import Pace
from forerun.core.sublayers import NOTHING, SkipSet
from forerun.model.executor import CacheMove, ForwardInput
from forerun.model.runner import Runner
from forerun.model.self_drafting import DraftRunner
from forerun.model.tree_cache import TreeCache

MOST_REPEATS: Final = 8
LEAST_REPEATS: Final = 2
MOST_PASSES: Final = 8
SETTLED_S: Final = 0.012  # of repeats of one width: the first short pass is slower, as the CPU's caches are cold
# Widths to measure, in rows. With GGUF weights three rows cost as much as one, four 7 % more; 5 and 7 gain nothing.
WIDTHS: Final = (1, 2, 3, 4, 6, 8, *range(12, 32, 4), *range(32, 128, 16))
TEXT_ROWS: Final = (64, 256)  # of a prompt; the wider pass is measured only if the other is quick, as on a GPU
QUICK_S: Final = 0.1


@torch.inference_mode()
def measure_pace(runner: DraftRunner, widths: Sequence[int], *, context: int = 64, budget_s: float = 0.3) -> Pace:
    """Seconds of a pass for each number of rows, never falling as rows are added. Empties the cache.

    Args:
        widths: numbers of rows, ascending; they are measured in turn.
        context: number of tokens before the rows, fewer if the cache has less room.
        budget_s: no repeat is started after this time.
    """
    stand_in(empty_cache(runner), max(0, min(context, runner.cache.capacity - widths[-1])))
    seconds = least_times([partial(time_pass, runner, width) for width in widths], budget_s)
    runner.cache.truncate(0)
    return Pace(steps=tuple(zip(widths, rising(seconds), strict=True)))


@torch.inference_mode()
def measure_reading(runner: DraftRunner) -> Pace:
    """Seconds of reading a prompt by its rows. Empties the cache."""
    widths = list[int]()
    seconds = list[float]()
    most_rows = empty_cache(runner).capacity
    for width in TEXT_ROWS:
        widths.append(min(width, most_rows))
        seconds += least_times([partial(time_pass, runner, widths[-1], is_text=True)], 0.0)
        if seconds[-1] > QUICK_S or widths[-1] == most_rows:
            break
    return Pace(steps=tuple(zip(widths, rising(seconds), strict=True)))


def empty_cache(runner: DraftRunner) -> TreeCache:
    """The runner's cache, without any text."""
    if isinstance(runner, Runner):
        runner.forget()
    assert not runner.cached_ids, "a shared cache holds a text that only its owner may drop"
    return runner.cache


def least_times(runs: Sequence[Callable[[], float]], budget_s: float) -> list[float]:
    """The shortest time of each run, in seconds; the minimum, because other load on the machine only adds time.

    The runs take turns, the widest pass first. Each repeats until its times settle, since a short pass takes up to 1.5
    times as long for 10 ms after a wide one.
    """
    times: list[list[float]] = [[] for _ in runs]
    began = perf_counter()
    for repeat in range(MOST_REPEATS):
        if repeat >= LEAST_REPEATS and perf_counter() - began > budget_s:
            break
        for run, seconds in zip(reversed(runs), reversed(times), strict=True):
            start = len(seconds)
            while sum(seconds[start:]) < SETTLED_S and len(seconds) - start < MOST_PASSES:
                seconds.append(run())
    return [min(seconds) for seconds in times]


def widths_up_to(most: int) -> list[int]:
    """Numbers of rows to measure, ascending, with `most` as the last: few, so that each is measured often."""
    return [*(width for width in WIDTHS if width < most), most]


def stand_in(cache: TreeCache, num_tokens: int) -> None:
    """Treat the arbitrary contents of the slots as a text: attending to it takes as long as to a real one."""
    cache.move(CacheMove(length=0, num_adopted=num_tokens))
    if cache.mixer_rows is not None:
        cache.mixer_rows.stand_in(num_tokens)


def rising(values: Sequence[float]) -> list[float]:
    """Lower each value to the least of those after it: a larger one is due to other load on the machine."""
    return [*accumulate(reversed(values), min)][::-1]


def time_pass(runner: DraftRunner, num_rows: int, skipped: SkipSet = NOTHING, *, is_text: bool = False) -> float:
    """Seconds of one pass, including reading a logit; in a pass over text only the last row has logits."""
    cache = runner.cache
    start = cache.committed_len
    began = perf_counter()
    output = runner.forward(
        ForwardInput(
            token_ids=[row % runner.spec.vocab_size for row in range(num_rows)],  # equal rows choose equal experts
            positions=list(range(start, start + num_rows)),
            first_slot=cache.end,
            prefix_len=start,
            ancestry=None if num_rows == 1 or is_text else star(num_rows),
            num_logit_rows=1 if is_text else num_rows,
            skipped=skipped,
        )
    )
    output.logits[-1, 0].item()  # waits until the device has finished
    elapsed = perf_counter() - began
    cache.truncate(start)
    return elapsed


def star(num_rows: int) -> NDArray[np.bool_]:
    """The ancestry of a root and its children; the mask costs the same for every tree."""
    ancestry = np.eye(num_rows, dtype=np.bool_)
    ancestry[:, 0] = True
    return ancestry
