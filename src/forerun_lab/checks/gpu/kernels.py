"""Every kernel at the shapes of real models: time, share of the ceiling, torch's time, error against float64."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial

import torch

from forerun.backends.gpu.backend import TRITON
from forerun.backends.torch.backend import REFERENCE
from forerun.checkpoints.typed_weights import LoadedWeights
from forerun.core.model_spec import ModelSpec
from forerun.model.quantise import dequantise, output_format, quantise
from forerun.model.tree_cache import TreeCache
from forerun_lab.checks.gpu.cases import Case, Row, Setting
from forerun_lab.checks.gpu.clock import time_sides
from forerun_lab.checks.gpu.heads import head_cases
from forerun_lab.checks.gpu.layers import KERNELS, Layers, context_of, kernel_of, reduced, torch_calls, trimmed
from forerun_lab.checks.gpu.models import Model, RandomWeights, filled_cache, models, pass_of, rows_of
from tests.backends.diff import diff_buffers

MODELS = ("1b bf16", "8b bf16", "8b int4", "70b int4", "1b int4")


def cases(setting: Setting) -> Iterator[Case]:
    chosen = models(setting, *MODELS[: 3 if setting.is_quick else None])
    for model in chosen:
        yield Case(name=f"{model}: errors", run=partial(errors, model, setting))
    for model in chosen:
        yield from head_cases(model, setting)
        for kernel in KERNELS:
            run = partial(timings, model, kernel, setting)
            yield Case(name=f"{model}: {kernel}", run=run, warm=partial(launch_once, model, kernel, setting))


@lru_cache(maxsize=1)
def layers_of(model: Model, spec: ModelSpec, setting: Setting) -> Layers:
    return Layers.make(model, spec, setting)


@torch.inference_mode()
def launch_once(model: Model, kernel: str, setting: Setting) -> None:
    spec = trimmed(reduced(model, kernel, setting), kernel)
    layers = Layers.make(model, replace(spec, num_layers=min(2, spec.num_layers)), setting)
    for num_rows in rows_of(setting):
        for call in layers.calls(kernel, layers.aim(num_rows)):
            call()


@torch.inference_mode()
def timings(model: Model, kernel: str, setting: Setting) -> Iterator[Row]:
    """One row for each number of rows."""
    spec = trimmed(reduced(model, kernel, setting), kernel)
    layers = layers_of(model, spec, setting)
    for num_rows in rows_of(setting):
        calls = layers.calls(kernel, layers.aim(num_rows))
        sides = [calls, torch_calls(spec, kernel, num_rows, setting)]
        ours, torchs = time_sides(sides, setting.device, budget_s=0.12)
        moved_bytes = layers.moved_bytes(kernel, num_rows)
        yield {
            "model": str(model),
            "kernel": kernel,
            "rows": num_rows,
            "us": 1e6 * ours.median,
            "us_low": 1e6 * ours.low,
            "us_high": 1e6 * ours.high,
            "copies": len(calls),
            "moved_bytes": moved_bytes,
            "ceiling_share": setting.floor_share(moved_bytes, ours.median),
            "torch_bf16_us": 1e6 * torchs.median,
        }


@torch.inference_mode()
def errors(model: Model, setting: Setting) -> Iterator[Row]:
    """The largest error of each kernel relative to its largest value, its inputs given, torch in float64 beside it."""
    spec = replace(model.spec, num_layers=1, tied_embeddings=False)
    context = context_of(setting)
    device = setting.device
    cache = filled_cache(spec, context + 64, device)
    wide_cache = TreeCache(spec, context + 64, dtype=torch.float64, device=device)
    weights = RandomWeights(spec, device=device).tensors()
    tried = TRITON.executor(spec, LoadedWeights(weights, model.weight_format), cache)
    reference = REFERENCE.executor(spec, LoadedWeights(widened(weights, model)), wide_cache)
    for num_rows in rows_of(setting):
        wide_cache.keys_LSKD.copy_(cache.keys_LSKD)
        wide_cache.values_LSKD.copy_(cache.values_LSKD)
        largest: dict[str, float] = {}
        for found in diff_buffers(tried, cache, reference, wide_cache, pass_of(spec, num_rows, context)):
            kernel = kernel_of(found.op)
            largest[kernel] = max(largest.get(kernel, 0.0), found.relative)
            if found.relative != found.relative:  # NaN, which no comparison finds
                largest[kernel] = float("nan")
        for kernel, error in largest.items():
            yield {"model": str(model), "kernel": kernel, "rows": num_rows, "error": error}


def widened(weights: dict[str, torch.Tensor], model: Model) -> dict[str, torch.Tensor]:
    """What the weights stand for once they are stored in the model's format, in float64. `weights` is emptied."""
    wide = {}
    for name in list(weights):
        weight = weights.pop(name)
        if weight.dim() == 2 and name != "embedding.weight":
            form = output_format(model.weight_format) if name == "head.weight" else model.weight_format
            weight = dequantise(quantise(weight, form)) if form != "plain" else weight
        wide[name] = weight.double()
    return wide
