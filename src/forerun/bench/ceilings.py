"""What the device can do at best, measured: bytes per second and multiplications per second."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import ceil, prod, sqrt
from typing import Any, Final

import torch

from forerun.backends.choose import FUSED
from forerun.bench.kernel_clock import Call, Spread, time_in_turn, undisturbed
from forerun.bench.machine import last_level_cache_bytes
from forerun.checkpoints.names import fused_shapes, tensor_plan
from forerun.core.errors import ConfigError
from forerun.core.model_spec import ModelSpec, WeightFormat
from forerun.model.quantise import head_format, weight_bytes

DTYPES: Final = ("float32", "bfloat16")
NUM_BUFFERS: Final = 4
# One buffer takes a GPU long enough to hide the start of a kernel.
LEAST_BUFFER_BYTES: Final = {"cpu": 32 << 20, "cuda": 512 << 20}
GPU_MATRIX_SIZE: Final = 8192
THREAD_MATRIX_SIZE: Final = 512  # about a millisecond: short against a time slice, long against a call


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """The most that simple torch calls reached on a device with so many threads, per second.

    Args:
        device: a torch device.
        num_threads: CPU threads; of no meaning on a GPU.
        cache_bytes: the last-level cache.
        read: bytes summed up, from buffers that together are several times the cache.
        copy: the same copied, bytes read and bytes written both counted.
        cached_read: bytes summed up again and again in an eighth of the cache.
        matmul: operations (a multiplication and an addition are two) of a square matrix product by dtype.
    """

    device: str
    num_threads: int
    cache_bytes: int
    read: Spread
    copy: Spread
    cached_read: Spread
    matmul: Mapping[str, Spread]

    def floor_s(self, *, moved_bytes: int, num_operations: int, dtype: str, is_cached: bool) -> float:
        """The least time for work that moves so many bytes and computes so much: the longer of the two."""
        bytes_per_s = (self.cached_read if is_cached else self.read).median
        return max(moved_bytes / bytes_per_s, num_operations / self.matmul[dtype].median)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Ceilings":
        """The ceilings that `to_dict` gave.

        Raises:
            ConfigError: these values are something else.
        """
        try:
            return cls(
                device=str(values["device"]),
                num_threads=int(values["num_threads"]),
                cache_bytes=int(values["cache_bytes"]),
                matmul={str(dtype): Spread(**spread) for dtype, spread in values["matmul"].items()},
                **{name: Spread(**values[name]) for name in ("read", "copy", "cached_read")},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"these are no ceilings of a device ({type(error).__name__}: {error}): measure them again"
            ) from error


def measure_ceilings(
    device: str = "cpu", *, dtypes: Sequence[str] = DTYPES, budget_s: float = 2.0, cache_bytes: int | None = None
) -> Ceilings:
    """Measure a device in about `budget_s` seconds, with torch's present number of threads.

    Args:
        dtypes: of the matrix products.
        cache_bytes: the last-level cache; None asks the system.
    """
    place = torch.device(device)
    cache_bytes = last_level_cache_bytes(place) if cache_bytes is None else cache_bytes
    share_s = budget_s / (3 + len(dtypes))
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
        matmul={dtype: matmul_rate(dtype, place, share_s) for dtype in dtypes},
    )


def copies(buffers: Sequence[torch.Tensor]) -> list[Call]:
    """Each buffer copied into the next but one, so that no copy finds what the one before it wrote."""
    targets = [*buffers[2:], *buffers[:2]]
    return [partial(target.copy_, source) for target, source in zip(targets, buffers, strict=True)]


@torch.inference_mode()
def matmul_rate(dtype: str, device: torch.device, budget_s: float) -> Spread:
    """Operations per second of a square matrix product: torch's own or the packed one, whichever is the faster.

    On some processors one of them takes code made for others, and reaches half of the other.
    """
    size = matrix_size(device)
    left, right = (torch.ones(size, size, dtype=getattr(torch, dtype), device=device) for _ in range(2))
    packed = FUSED.pack_linear(right, None)
    calls: tuple[Call, ...] = (lambda: left @ right, lambda: packed(left))
    rates = [rate([call], 2 * size**3, device, budget_s / len(calls)) for call in calls]
    return max(rates, key=lambda spread: spread.median)


def matrix_size(device: torch.device) -> int:
    """Rows and columns of a product that keeps every thread as busy as one would be with THREAD_MATRIX_SIZE."""
    if device.type == "cuda":
        return GPU_MATRIX_SIZE
    return THREAD_MATRIX_SIZE * ceil(sqrt(torch.get_num_threads()))


def rate(calls: Sequence[Call], amount: int, device: torch.device, budget_s: float) -> Spread:
    """`amount` per second, where each call is worth `amount`."""
    rounds = undisturbed(time_in_turn([calls], device, budget_s=budget_s))
    return Spread.of([amount / block.call_s for (block,) in rounds])


def bytes_per_step(spec: ModelSpec, element_bytes: int, context: int, weight_format: WeightFormat = "plain") -> int:
    """Bytes that one decoding step of one row must read: the weights, and keys and values of `context` tokens.

    Of an embedding table of its own the step reads one row. A table that is the head too is read whole, and counted
    once; but a quantised head is another table.
    """
    head = "embedding.weight" if spec.tied_embeddings else "head.weight"
    is_shared = spec.tied_embeddings and weight_format == "plain"
    num_bytes = 0 if is_shared else spec.hidden_size * element_bytes
    for name, shape in fused_shapes(tensor_plan(spec)).items():
        if name == head:
            num_bytes += weight_bytes(shape, head_format(weight_format), element_bytes)
        elif name != "embedding.weight":
            is_linear = len(shape) == 2
            num_bytes += weight_bytes(shape, weight_format, element_bytes) if is_linear else prod(shape) * element_bytes
    return num_bytes + context * spec.kv_bytes_per_token(element_bytes)
