"""A forward pass and the change of the cache before it, as one small value.

A process that plays the same steps on the same weights gets the same cache and the same logits. So the ranks that share
a model only have to be sent the leader's steps.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, TypeAlias

from forerun.model.inputs import ForwardInput


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
