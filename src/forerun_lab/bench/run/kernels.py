"""Open a model on native kernels, and measure all its passes op by op."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from forerun.backends.backend import Backend
from forerun.checkpoints.open import open_source
from forerun.core.affinity import usable_cores
from forerun.core.config import EngineConfig, Exactness
from forerun.core.errors import ConfigError, require
from forerun.core.threads import on_threads
from forerun.engine.model_loading import Checkpoint
from forerun.engine.threads_and_cores import allowed_threads
from forerun_lab.bench.records.kernel_costs import KernelCosts
from forerun_lab.bench.run.kernel_times import CONTEXT, Measurement, OnStep
from forerun_lab.bench.run.machine import describe_machine, foreign_load


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRequest:
    """The passes to measure.

    Args:
        config: target, dtype, weight format, and the most threads.
        tier: the instruction set; None takes the best.
        rows: numbers of rows after a short text, as for a decoded token or a verified tree.
        prompts: lengths of prompts that are read from an empty cache.
        budget_s: no further repeat begins after this many seconds.
    """

    config: EngineConfig
    tier: str | None
    rows: Sequence[int]
    prompts: Sequence[int]
    budget_s: float


def measure_kernels(request: KernelRequest, on_step: OnStep = lambda done, total: None) -> KernelCosts:
    """Measure the model's passes, all kinds in turn.

    Raises:
        ConfigError: the model does not run on native kernels, there is no such tier, or a pass is too long.
    """
    config = request.config
    checkpoint = Checkpoint.open(open_source(config.target), config)
    require_passes(request, checkpoint.spec.max_positions)
    backend = native_backend(checkpoint, config.exactness)
    if not backend.select_tier(request.tier):
        raise ConfigError(f"tier {request.tier!r} is not in this build, or this processor lacks its instructions")
    try:
        num_threads = allowed_threads(config.num_threads, usable_cores())
        return on_threads(num_threads, lambda: _measure(request, checkpoint, backend, on_step))
    finally:
        backend.select_tier(None)


def require_passes(request: KernelRequest, max_positions: int) -> None:
    """Raise ConfigError if there is nothing to measure, or a pass is longer than the model's positions."""
    lengths = (*request.rows, *request.prompts)
    require(bool(lengths), "there is nothing to measure: give --rows or --prompt")
    require(min(lengths) >= 1, f"a pass of {min(lengths)} rows cannot be measured: give numbers of 1 or more")
    require(
        max(lengths) <= max_positions,
        f"{max(lengths)} rows are more than the {max_positions} positions of {request.config.target}: measure fewer",
    )


def native_backend(checkpoint: Checkpoint, exactness: Exactness) -> Backend:
    """The native backend of the model, whose ops can be timed one by one.

    Raises:
        ConfigError: the model runs on another backend.
    """
    choice = checkpoint.choose_backend(exactness)
    name = checkpoint.source.name
    if choice.backend.name == "native":
        return choice.backend
    dtype = str(checkpoint.dtype).removeprefix("torch.")
    missing = choice.missing or f"they do not compute in {dtype}: give --dtype bfloat16 or float32"
    raise ConfigError(f"only passes on the native kernels of the CPU are measured op by op. For {name}, {missing}")


def _measure(request: KernelRequest, checkpoint: Checkpoint, backend: Backend, on_step: OnStep) -> KernelCosts:
    capacity = CONTEXT + max(*request.rows, *request.prompts, 1)
    runner = checkpoint.load(exactness=request.config.exactness, capacity=capacity)
    probe = backend.kernel_probe(runner.executor)
    assert probe is not None, "the native kernels have a probe"
    measurement = Measurement(runner, probe, rows=request.rows, prompts=request.prompts)
    repeats = measurement.run(request.budget_s, on_step)
    return KernelCosts(
        model=checkpoint.source.name,
        dtype=checkpoint.dtype_name,
        tier=probe.tier,
        num_threads=torch.get_num_threads(),
        context=measurement.context,
        read_bytes_per_s=measurement.read_bytes_per_s(),
        peaks_per_s={str(kind): value for kind, value in measurement.peaks_per_s().items()},
        repeats=repeats,
        passes=measurement.passes(),
        foreign_load=foreign_load(),
        machine=describe_machine(),
    )
