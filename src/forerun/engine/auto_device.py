"""Choose the device for "auto" on this machine."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Final

import torch

from forerun.backends.dtypes import compute_dtype
from forerun.checkpoints.huggingface.names import fused_shapes, tensor_plan
from forerun.checkpoints.open import open_source
from forerun.checkpoints.safetensors.header import FLOAT_BYTES
from forerun.checkpoints.source import CheckpointSource
from forerun.core.config import AUTO_DEVICE, EngineConfig, Exactness
from forerun.core.model_spec import ModelSpec, state_bytes
from forerun.core.pace import Placement
from forerun.drafting.heads.stored import require_model
from forerun.engine.model_loading import (
    Checkpoint,
    conditions_of,
    hint_at_gpu,
    resolve_max_length,
    tell_once,
    weight_format_of,
)
from forerun.engine.rank_weights import stored_bytes
from forerun.model.gguf_block_types import BLOCKS
from forerun.sharding.plan import plan_shards

DRIVER: Final = Path("/proc/driver/nvidia/version")  # exists if the system has an NVIDIA driver
HALF: Final = 2  # bytes of a bfloat16 number, the dtype on GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU that torch sees. `fault` is the error of a first operation on it, None if it works."""

    name: str
    free_bytes: int
    fault: str | None = None


def settle_device(config: EngineConfig) -> EngineConfig:
    """The config with a device in place of "auto"; logs once why a GPU is not used."""
    if config.device != AUTO_DEVICE:
        hint_at_gpu(config.device)
        return config
    source = require_model(open_source(config.target))
    spec = source.spec()
    max_length = resolve_max_length(config, spec)
    cache_bytes = spec.kv_bytes_per_token(HALF) * max_length + state_bytes(spec, max_length, HALF)
    gpus = gpus_of_torch()
    working = next((f"cuda:{number}" for number, gpu in enumerate(gpus) if gpu.fault is None), None)
    weight_bytes = opening_bytes(source, spec, replace(config, device=working or "cpu"))
    device, obstacle = choose_device(
        gpus,
        needed_bytes=weight_bytes + cache_bytes + config.cache_bytes,
        is_unseen=DRIVER.exists() and torch.version.cuda is None,
    )
    if device != "cpu" and config.cache != "model" and config.kernels != "torch":
        device = "cpu"
        obstacle = f'cache "{config.cache}" is not for the Triton kernels'
    if obstacle is not None:
        tell_once(f"the model runs on the CPU: {obstacle}")
    return replace(config, device=device)


def opening_bytes(source: CheckpointSource, spec: ModelSpec, config: EngineConfig) -> int:
    """Approximate bytes of the weights on the config's device while the model is opened.

    Only Triton's kernels multiply 8-bit or 4-bit weights; each is rounded as it is read, so one plain weight is in
    memory too. Torch's kernels hold every weight in a plain dtype.
    """
    formats = source.stored_formats()
    weight_format = weight_format_of(config.weights)
    is_quantised = weight_format != "plain" or not formats.keys() <= FLOAT_BYTES.keys() | BLOCKS.keys()
    conditions = conditions_of(config, spec)
    name = compute_dtype(
        config.dtype,
        stored=source.stored_dtype(),
        is_quantised=is_quantised,
        device=config.device,
        conditions=conditions,
    )
    dtype: torch.dtype = getattr(torch, name)
    checkpoint = Checkpoint(
        source=source,
        spec=spec,
        dtype=dtype,
        weight_format=weight_format,
        placement=Placement(torch_device=config.device),
        conditions=conditions,
    )
    if not is_quantised or not has_triton(checkpoint, config.exactness):
        return max(sum(formats.values()), HALF * spec.num_parameters)
    largest = max(prod(shape) for shape in fused_shapes(tensor_plan(spec)).values())
    return stored_bytes(checkpoint, plan_shards(spec, 1)[0]) + largest * dtype.itemsize


def has_triton(checkpoint: Checkpoint, exactness: Exactness) -> bool:
    """Whether Triton's kernels run the model on its device."""
    conditions = checkpoint.conditions
    if checkpoint.device == "cpu" or conditions.kernels == "torch":
        return False
    tried = replace(checkpoint, conditions=replace(conditions, kernels="auto"))
    return tried.choose_backend(exactness).missing is None


def choose_device(gpus: Sequence[Gpu], *, needed_bytes: int, is_unseen: bool = False) -> tuple[str, str | None]:
    """The working GPU with the most free memory if the model fits there, else the CPU.

    Args:
        needed_bytes: of weights, cache and saved texts.
        is_unseen: whether the system has a GPU that this build of torch does not support.

    Returns:
        The device, and if a GPU exists but is not used, the reason.
    """
    if not gpus:
        return "cpu", "this torch was built without CUDA, which the GPU of this machine needs" if is_unseen else None
    working = [(gpu.free_bytes, -number) for number, gpu in enumerate(gpus) if gpu.fault is None]
    if not working:
        return "cpu", f"{gpus[0].name} fails at its first operation ({gpus[0].fault})"
    free_bytes, number = max(working)
    if free_bytes < needed_bytes:
        name = gpus[-number].name
        free = free_bytes / 2**30
        needed = needed_bytes / 2**30
        return (
            "cpu",
            f"{name} has {free:.1f} GiB free, but model and caches need {needed:.1f}: set a smaller max_length or "
            "cache_bytes",
        )
    return f"cuda:{-number}", None


def gpus_of_torch() -> list[Gpu]:
    """Every GPU that torch sees, each tested with an operation."""
    if not torch.cuda.is_available():
        return []
    return [_tried(number) for number in range(torch.cuda.device_count())]


def _tried(number: int) -> Gpu:
    name = f"cuda:{number}"
    try:
        name = torch.cuda.get_device_name(number)
        torch.ones(1, device=f"cuda:{number}").add_(1.0).item()
        return Gpu(name=name, free_bytes=torch.cuda.mem_get_info(number)[0])
    except RuntimeError as error:  # an old driver, a GPU too old for this torch, or no free memory
        return Gpu(name=name, free_bytes=0, fault=str(error).partition("\n")[0])
