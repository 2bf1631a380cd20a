"""The interface of executors, which run a model's program."""

from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

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


@runtime_checkable
class ModelExecutor(Executor, Protocol):
    """The executor of a whole model, whose first and last weights a draft head can use as well."""

    def embed(self, token_ids: Tensor) -> Tensor:
        """The embedding's rows [..., H] of some tokens, without the model's factor, in any floating dtype."""
        ...

    def output(self) -> Callable[[Tensor], Tensor] | None:
        """The last linear layer for drafts, [..., H] to [..., V] in the dtype of its input; None: a draft needs a copy
        of it."""
        ...
