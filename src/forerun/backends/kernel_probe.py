"""What a backend tells of its kernels one by one: their work, their times, the most that instructions can do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from forerun.model.inputs import ForwardInput

InputKind = Literal["float32", "bfloat16", "int16", "int8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpWork:
    """What one op of a pass has to do.

    Args:
        name: what it computes, with what is fused with it; the same in every layer.
        weights: the format of its weight, or "" where it has none.
        num_bytes: of its weight, or of the keys and values that attention reads; what is small, and rests in the first
            caches, is not counted.
        multiply_adds: products that it adds up, for all rows of the pass.
        inputs: what its weight is multiplied with.
    """

    name: str
    weights: str
    num_bytes: int
    multiply_adds: int
    inputs: InputKind


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTimes:
    """Seconds of the ops of one pass, each in a call of its own, and of a call that computes nothing."""

    ops_s: Sequence[float]
    call_s: float


class KernelProbe(Protocol):
    """The kernels behind one executor."""

    @property
    def tier(self) -> str:
        """The name of the instruction set in use."""
        ...

    def work(self, inputs: ForwardInput) -> list[OpWork]:
        """The ops that this pass runs, in order."""
        ...

    def time_ops(self, inputs: ForwardInput) -> OpTimes:
        """Run the pass op by op, in order, so that each finds the caches as it does within a pass."""
        ...

    def read(self, memory: Tensor) -> None:
        """Read all of this memory, as kernels read weights."""
        ...

    def multiply_adds(self, inputs: InputKind, num_rounds: int) -> int:
        """Add up products in registers alone; returns how many, or 0 where the instructions are not known."""
        ...
