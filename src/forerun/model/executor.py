"""A forward pass: its input, its output, the change of the cache before it, and the interface of what runs it.

A process that plays the same passes and changes on the same weights gets the same cache and the same logits. So the
ranks that share a model only have to be sent what their leader does.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from forerun.core.sublayers import NOTHING, SkipSet
from forerun.model.program import Op
from forerun.sampling.sample import BestTokens

Observer: TypeAlias = Callable[[Op, Tensor], None]  # an op that was run, and the buffer it wrote


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenChoice:
    """Choose the token with the largest logit / temperature + noise, see `sampling.sample`.

    Args:
        seed: seed of the noise, 64 bits; None: no noise.
    """

    seed: int | None
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardInput:
    """T rows for one forward pass.

    Args:
        token_ids: T ids.
        positions: T places in the text; independent of the slots.
        first_slot: the rows' keys and values go to slots first_slot .. first_slot + T - 1.
        prefix_len: number of slots, from the first, that every row attends to.
        ancestry: [T, W] bool, which rows attend to which slots from prefix_len to the last new one; None means causal.
        num_logit_rows: number of rows at the end with logits.
        skipped: sublayers left out of this pass (self-speculation).
        row_skips: [T, S] bool, the sublayers, in the order of `all_sublayers`, that this row alone leaves out: they do
            not change its residual stream, but its keys and values are still written. None: every row runs them all.
        choice: how the caller will choose a token after each row with logits, if it uses the logits for nothing else;
            ranks that share a model then return the tokens in `ForwardOutput.best` instead of joining their logits.
        taps: layers, ascending, after which the residual stream is copied into `ForwardOutput.features`.
    """

    token_ids: list[int]
    positions: list[int]
    first_slot: int
    prefix_len: int
    ancestry: NDArray[np.bool_] | None = None
    num_logit_rows: int = 1
    skipped: SkipSet = NOTHING
    row_skips: NDArray[np.bool_] | None = None
    taps: tuple[int, ...] = ()
    choice: TokenChoice | None = None

    def __post_init__(self) -> None:
        num_rows = len(self.token_ids)
        assert num_rows == len(self.positions) > 0, f"{num_rows} ids, {len(self.positions)} positions"
        assert 0 <= self.prefix_len <= self.first_slot, f"prefix {self.prefix_len}, first slot {self.first_slot}"
        assert 0 <= self.num_logit_rows <= num_rows, f"{self.num_logit_rows} logit rows of {num_rows}"
        if self.ancestry is not None:
            shape = num_rows, self.first_slot + num_rows - self.prefix_len
            assert self.ancestry.shape == shape, f"ancestry {self.ancestry.shape} where {shape} is needed"
        if self.row_skips is not None:
            assert len(self.row_skips) == num_rows, f"row skips {self.row_skips.shape} for {num_rows} rows"
        assert list(self.taps) == sorted(set(self.taps)), f"taps {self.taps}"

    @property
    def num_slots(self) -> int:
        """Number of slots filled after this pass."""
        return self.first_slot + len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForwardOutput:
    """The output of a pass of T rows, with vocabulary size V and hidden size H.

    Args:
        logits: [num_logit_rows, V], of the last rows, in the dtype of the backend's scores.
        features: [T, len(taps), H], the residual stream of every row after each tapped layer, in the dtype of the
            backend's activations; None without taps.
        best: the tokens chosen by `ForwardInput.choice`, if the pass chose them; `logits` is then empty, [0, V].
    """

    logits: Tensor
    features: Tensor | None = None
    best: BestTokens | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheMove:
    """Which rows of a cache are kept.

    Args:
        length: number of committed tokens to keep.
        rows: tree rows to keep after them, in their new order; all others are dropped.
        num_committed: number of `rows`, from the first, that become committed.
        num_adopted: number of slots after the text that become committed as they are; only without `rows`.
    """

    length: int
    rows: tuple[int, ...] = ()
    num_committed: int = 0
    num_adopted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TextMove:
    """A call of the method of `WarmTexts` named by `kind`.

    Args:
        start: for "restore", the number of the text's tokens that are in the cache already.
    """

    kind: Literal["find", "save", "restore", "forget"]
    token_ids: Sequence[int] = ()
    owner: str | None = None
    start: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """First the move, then the pass; either may be left out. The rows of a pass become the last rows of the tree."""

    move: CacheMove | None = None
    inputs: ForwardInput | None = None


Told: TypeAlias = CacheMove | TextMove | ForwardInput
Tell: TypeAlias = Callable[[Told], AbstractContextManager[object]]  # the change is made inside the context


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
