"""A pass, and what becomes of the cache before it, as one small value.

A process that plays the same steps on the same weights has the same cache and the same logits. So the steps of one
process are all that the others sharing a model with it need.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from forerun.model.inputs import ForwardInput


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheMove:
    """Which rows of a cache stay.

    Args:
        length: committed tokens that stay.
        rows: tree rows that stay behind them, in their new order; all others go.
        num_committed: number of `rows`, from the first, that become text.
        num_adopted: slots behind the text whose rows are in order already and become text, where no `rows` are named.
    """

    length: int
    rows: tuple[int, ...] = ()
    num_committed: int = 0
    num_adopted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TextMove:
    """A text between a cache and the texts saved from it; see the methods of `WarmTexts` of these names.

    Args:
        start: of a text that is restored, the tokens that are in the cache.
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
Tell: TypeAlias = Callable[[Told], AbstractContextManager[object]]  # what is told is done within
ALONE: Final = nullcontext()


def nobody(told: Told) -> AbstractContextManager[object]:
    """Nobody else has a part of this cache."""
    return ALONE
