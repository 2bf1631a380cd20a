"""What is measured of an op: one use of it in a model, bound to the weights and inputs it has there.

Both twins get inputs of their own with the same values, so that one which writes to its inputs is found out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import torch
from torch import Tensor

from forerun.backends.choose import Kernels
from forerun.bench.kernel_clock import Call
from forerun.core.model_spec import ModelSpec

PERIOD: Final = 1_000_003  # a prime: random values repeat, but never in step with a matrix's rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A model and where it runs, with `context` tokens in its cache."""

    spec: ModelSpec
    dtype: torch.dtype
    device: torch.device
    context: int

    def random(self, *shape: int, seed: int, scale: float = 1.0) -> Tensor:
        """Normal values, the same for the same seed. They repeat after a million, which costs a copy only."""
        size = prod(shape)
        generator = torch.Generator().manual_seed(seed)
        values = torch.randn(min(size, PERIOD), generator=generator).mul_(scale).to(self.device, self.dtype)
        return values.repeat(-(-size // PERIOD))[:size].view(shape)

    def num_bytes(self, num_elements: int) -> int:
        return num_elements * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a call cannot do without: each input read once, each output written once, and the arithmetic."""

    moved_bytes: int
    num_operations: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Calls that do the same on copies of the same data, and how their results can be compared between twins."""

    calls: tuple[Call, ...]
    comparable: Callable[[Any], Tensor] = lambda result: result


Bind = Callable[[Kernels, int], Callable[[int], Bound]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One use of an op in a model.

    Args:
        op: the field of `Kernels`.
        part: where the model uses it.
        bind: (kernels, number of copies) to (number of rows) to calls, one per copy.
        cost: (number of rows) to what a call costs at least.
        copy_bytes: weights or keys and values of one call, of which the model's next such call reads others; 0 where
            a call reads only what the op before it has just written.
        num_in_model: such calls in one pass.
    """

    op: str
    part: str
    bind: Bind
    cost: Callable[[int], Cost]
    copy_bytes: int = 0
    num_in_model: int = 1
