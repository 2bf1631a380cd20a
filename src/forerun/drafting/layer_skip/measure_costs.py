"""What sublayers take of a pass, measured."""

from time import perf_counter
from typing import Final

import torch

from forerun.core.pace import Pace
from forerun.core.sublayers import ATTENTION, MLP, NOTHING, SkipSet, all_sublayers
from forerun.drafting.layer_skip.skip_costs import SkipCosts
from forerun.model.measure import LEAST_REPEATS, MOST_REPEATS, PASSES_PER_REPEAT, stand_in, time_pass
from forerun.model.shared_cache import DraftRunner

LONG_CONTEXT: Final = 1024


@torch.inference_mode()
def measure_skip_costs(runner: DraftRunner, whole: Pace, *, budget_s: float = 0.2) -> SkipCosts:
    """What sublayers take of a pass, by passes without those of a kind, with little text before them and with much.

    Empties the cache.

    Args:
        whole: seconds of a pass with all sublayers, by its rows.
        budget_s: no further repeat once this has passed.
    """
    runner.forget()
    assert not runner.cached_ids, "a lent cache holds a text that is another's to forget"
    cache, num_layers = runner.cache, runner.spec.num_layers
    without = {
        kind: frozenset(part for part in all_sublayers(num_layers) if part[1] == kind) for kind in (ATTENTION, MLP)
    }
    short, long = (min(context, (cache.capacity - 1) // divisor) for context, divisor in ((64, 2), (LONG_CONTEXT, 1)))
    runs = [(context, skipped) for context in (short, long) for skipped in (NOTHING, *without.values())]
    times: dict[tuple[int, SkipSet], list[float]] = {run: [] for run in runs}
    began = perf_counter()
    for repeat in range(MOST_REPEATS):
        if repeat >= LEAST_REPEATS and perf_counter() - began > budget_s:
            break
        for context, skipped in runs:
            stand_in(cache, context)
            times[context, skipped] += [time_pass(runner, 1, skipped) for _ in range(PASSES_PER_REPEAT)]
    cache.truncate(0)
    quartile = {run: sorted(values)[len(values) // 4] for run, values in times.items()}

    def share_s(context: int, kind: str) -> float:
        return max(0.0, quartile[context, NOTHING] - quartile[context, without[kind]]) / num_layers

    scale = whole.step_s(1) / quartile[short, NOTHING]
    slope = (share_s(long, ATTENTION) - share_s(short, ATTENTION)) / max(1, long - short)
    return SkipCosts(
        whole=whole,
        attention_s=scale * share_s(short, ATTENTION),
        mlp_s=scale * share_s(short, MLP),
        context=short,
        attention_slope_s=scale * max(0.0, slope),
        num_layers=num_layers,
    )
