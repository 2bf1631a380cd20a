"""The interface of executors, which run a model's program."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from torch import Tensor

from forerun.model.inputs import ForwardInput
from forerun.model.outputs import ForwardOutput
from forerun.model.program import Op

Observer: TypeAlias = Callable[[Op, Tensor], None]  # an op that was run, and the buffer it wrote


class Executor(Protocol):
    """A program bound to weights and a cache."""

    def run(self, inputs: ForwardInput, observe: Observer | None = None) -> ForwardOutput:
        """Run one pass; `observe` is called with each op and the buffer it wrote."""
        ...
