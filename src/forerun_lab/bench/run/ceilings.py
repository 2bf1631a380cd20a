"""Measure the device's memory bandwidth, and count the bytes that a decoding step must read."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Final

import torch

from forerun.checkpoints.huggingface.names import fused_shapes, tensor_plan
from forerun.core.model_spec import CacheFormat, ModelSpec, WeightFormat
from forerun.model.quantise import output_format, weight_bytes
from forerun_lab.bench.run.call_times import Call, Spread, time_in_turn
from forerun_lab.bench.run.machine import last_level_cache_bytes

NUM_BUFFERS: Final = 4
# Reading one buffer takes a GPU much longer than a kernel launch.
LEAST_BUFFER_BYTES: Final = {"cpu": 32 << 20, "cuda": 512 << 20}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """The bandwidth, in bytes per second, of simple torch calls on a device with `num_threads` threads.

    Args:
        device: a torch device.
        num_threads: CPU threads; not used on a GPU.
        cache_bytes: size of the last-level cache.
        read: summing buffers that together are several times as large as the cache.
        copy: copying the same buffers; bytes read and bytes written both count.
        cached_read: summing an eighth of the cache repeatedly.
    """

    device: str
    num_threads: int
    cache_bytes: int
    read: Spread
    copy: Spread
    cached_read: Spread


def measure_ceilings(device: str = "cpu", *, budget_s: float = 2.0, cache_bytes: int | None = None) -> Ceilings:
    """Measure a device in about `budget_s` seconds, with torch's current number of threads.

    Args:
        cache_bytes: size of the last-level cache; None: as the system reports it.
    """
    place = torch.device(device)
    cache_bytes = last_level_cache_bytes(place) if cache_bytes is None else cache_bytes
    share_s = budget_s / 3
    size = max(cache_bytes, LEAST_BUFFER_BYTES[place.type]) // 4
    buffers = [torch.ones(size, device=place) for _ in range(NUM_BUFFERS)]
    cached = buffers[0][: max(1, cache_bytes // 8 // 4)]
    return Ceilings(
        device=device,
        num_threads=torch.get_num_threads(),
        cache_bytes=cache_bytes,
        read=rate([buffer.sum for buffer in buffers], 4 * size, place, share_s),
        copy=rate(copies(buffers), 8 * size, place, share_s),
        cached_read=rate([cached.sum], 4 * len(cached), place, share_s),
    )


def copies(buffers: Sequence[torch.Tensor]) -> list[Call]:
    """Copy each buffer into the next but one, so that no copy reads what the previous one wrote."""
    targets = [*buffers[2:], *buffers[:2]]
    return [partial(target.copy_, source) for target, source in zip(targets, buffers, strict=True)]


def rate(calls: Sequence[Call], amount: int, device: torch.device, budget_s: float) -> Spread:
    """`amount` per second, if each call processes `amount`."""
    return Spread.of([amount / call_s for (call_s,) in time_in_turn([calls], device, budget_s=budget_s)])


def bytes_per_step(
    spec: ModelSpec,
    element_bytes: int,
    context: int,
    weight_format: WeightFormat = "plain",
    cache: CacheFormat = "model",
) -> int:
    """Bytes that one decoding step of one row must read: the weights, and keys and values of `context` tokens.

    A step reads one row of an embedding table that is separate from the head, and of a table for the layers. A table
    shared with the head is read whole and counted once. A quantised head is always a separate table.
    """
    head = "embedding.weight" if spec.tied_embeddings else "head.weight"
    is_shared = spec.tied_embeddings and weight_format == "plain"
    num_bytes = 0 if is_shared else spec.hidden_size * element_bytes
    for name, shape in fused_shapes(tensor_plan(spec)).items():
        if name == head:
            num_bytes += weight_bytes(shape, output_format(weight_format), element_bytes)
        elif name == "layer_table.weight":
            num_bytes += shape[1] * element_bytes
        elif name != "embedding.weight":
            is_linear = len(shape) == 2
            num_bytes += weight_bytes(shape, weight_format, element_bytes) if is_linear else prod(shape) * element_bytes
    return num_bytes + context * spec.kv_bytes_per_token(element_bytes, cache)
