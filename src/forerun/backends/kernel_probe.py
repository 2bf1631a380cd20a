"""Measurements of a backend's single kernels: their work, their times, and the peak rate of instructions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from forerun.model.forward import ForwardInput

InputKind = Literal["float32", "bfloat16", "int16", "int8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpWork:
    """The work of one op of a pass.

    Args:
        name: what it computes, including fused ops; the same in every layer.
        weights: the format of its weight, or "" if it has none.
        num_bytes: bytes of its weight, or of the keys and values that attention reads. Small inputs that stay in the
            first-level caches are not counted.
        multiply_adds: number of multiply-adds for all rows of the pass.
        inputs: the format of the inputs that its weight is multiplied with.
    """

    name: str
    weights: str
    num_bytes: int
    multiply_adds: int
    inputs: InputKind


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTimes:
    """Seconds of the ops of one pass, each in a separate call, and of an empty call."""

    ops_s: Sequence[float]
    call_s: float


class KernelProbe(Protocol):
    """Measures the kernels of one executor."""

    @property
    def tier(self) -> str:
        """The name of the instruction set in use."""
        ...

    def work(self, inputs: ForwardInput) -> list[OpWork]:
        """The ops that this pass runs, in order."""
        ...

    def time_ops(self, inputs: ForwardInput) -> OpTimes:
        """Run the pass op by op, in order, so that the caches are in the same state as within a pass."""
        ...

    def read(self, memory: Tensor) -> None:
        """Read all of this memory in the way kernels read weights."""
        ...

    def multiply_adds(self, inputs: InputKind, num_rounds: int) -> int:
        """Run multiply-adds in registers only; returns their number, or 0 if the instructions are not known."""
        ...
