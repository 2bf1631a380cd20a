"""Whole passes of models of real shapes: seconds by the number of rows, and the share of what memory allows."""

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from forerun.backends.gpu.backend import TRITON
from forerun.backends.gpu.executor import DeviceExecutor
from forerun.model.executor import ForwardInput
from forerun.model.pass_times import stand_in
from forerun.model.runner import Runner
from forerun_lab.bench.run.call_times import Spread
from forerun_lab.bench.run.ceilings import bytes_per_step
from forerun_lab.checks.gpu.cases import Case, Row, Setting
from forerun_lab.checks.gpu.clock import time_replay
from forerun_lab.checks.gpu.layers import context_of
from forerun_lab.checks.gpu.models import DTYPE, Model, RandomWeights, models, pass_of, rows_of

MODELS = ("1b bf16", "8b bf16", "8b int4", "70b int4", "qwen2-7b bf16", "1b int4")
PREFILL_ROWS = 256


def cases(setting: Setting) -> Iterator[Case]:
    for model in models(setting, *(MODELS[-1:] if setting.is_rehearsal else MODELS[: 3 if setting.is_quick else None])):
        yield Case(name=str(model), run=partial(passes, model, setting), warm=partial(launch_once, model, setting))


def runner_of(model: Model, setting: Setting, *, capacity: int) -> Runner:
    """The model on the device. Quantised weights are random ones of their format, made at once."""
    weights = RandomWeights(model.spec, device=setting.device, weight_format=model.weight_format)
    return Runner(model.spec, weights, backend=TRITON, capacity=capacity, dtype=DTYPE, device=setting.device)


def launch_once(model: Model, setting: Setting) -> None:
    """All kernels of a pass, and those of a prefill, on two layers: the first one's inputs come from elsewhere."""
    runner = runner_of(replace(model, spec=replace(model.spec, num_layers=2)), setting, capacity=1024)
    fill_cache(runner, context_of(setting))
    for num_rows in rows_of(setting):
        runner.forward(pass_of(model.spec, num_rows, context_of(setting)))
    if not setting.is_rehearsal:
        runner.forward(prefill_of(model, context_of(setting)))


def fill_cache(runner: Runner, length: int) -> None:
    """A text of random keys and values, which costs no pass."""
    runner.cache.keys_LSKD.normal_()
    runner.cache.values_LSKD.normal_()
    stand_in(runner.cache, length)
    runner.cached_ids[:] = [1] * length


def prefill_of(model: Model, start: int) -> ForwardInput:
    rows = range(start, start + PREFILL_ROWS)
    return ForwardInput(
        token_ids=[place % model.spec.vocab_size for place in rows],
        positions=list(rows),
        first_slot=start,
        prefix_len=start,
        num_logit_rows=1,
    )


@torch.inference_mode()
def passes(model: Model, setting: Setting) -> Iterator[Row]:
    """One row for each number of rows, and one for a prefill pass."""
    began = time.perf_counter()
    context = context_of(setting)
    runner = runner_of(model, setting, capacity=1024)
    fill_cache(runner, context)
    if setting.device == "cuda":
        torch.cuda.synchronize()
    built_s = time.perf_counter() - began
    floor_bytes = bytes_per_step(model.spec, DTYPE.itemsize, context, model.weight_format)
    one_s = 0.0
    for num_rows in rows_of(setting):
        inputs = pass_of(model.spec, num_rows, context)
        spread, called_s = time_pass(runner, inputs, setting)
        one_s = one_s or spread.median
        floor_s = floor_bytes / setting.copy_bytes_per_s if setting.copy_bytes_per_s else None
        yield {
            "model": str(model), "rows": num_rows, "context": context,
            "ms": 1e3 * spread.median, "ms_low": 1e3 * spread.low, "ms_high": 1e3 * spread.high,
            "ms_from_host": 1e3 * called_s,
            "floor_bytes": floor_bytes,
            "floor_ms_computed": None if floor_s is None else 1e3 * floor_s,
            "floor_share": setting.floor_share(floor_bytes, spread.median),
            "cost_ratio": spread.median / one_s,
            "built_s": built_s,
        }  # fmt: skip
    if not setting.is_rehearsal:
        seconds = time_prefill(runner, prefill_of(model, context), setting)
        yield {"model": str(model), "rows": PREFILL_ROWS, "context": context, "ms_from_host": 1e3 * seconds}


def time_pass(runner: Runner, inputs: ForwardInput, setting: Setting) -> tuple[Spread, float]:
    """Seconds of the graph's replay by the device's clock, and of a call from the host until its logits are there."""
    executor = runner.executor
    assert isinstance(executor, DeviceExecutor)
    for _ in range(1 if setting.is_rehearsal else 3):  # compile, record, replay
        runner.forward(inputs)
    shape = executor.aim(inputs)

    def replay() -> None:
        executor.graphs.run(shape, lambda: executor.launch(shape, executor.logits_RV))

    spread = time_replay(replay, setting.device, budget_s=0.6)
    times = [seconds_from_host(runner, inputs, setting) for _ in range(1 if setting.is_rehearsal else 15)]
    return spread, Spread.of(times).median


def time_prefill(runner: Runner, inputs: ForwardInput, setting: Setting) -> float:
    runner.forward(inputs)
    return Spread.of([seconds_from_host(runner, inputs, setting) for _ in range(5)]).median


def seconds_from_host(runner: Runner, inputs: ForwardInput, setting: Setting) -> float:
    if setting.device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    runner.forward(inputs).logits[-1, :1].cpu()
    return time.perf_counter() - began
