"""A pass, and what becomes of the cache before it, as one small value.

A process that plays the same steps on the same weights has the same cache and the same logits. So the steps of one
process are all that the others sharing a model with it need.
"""

from dataclasses import dataclass

from forerun.model.inputs import ForwardInput


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheMove:
    """Which rows of a cache stay.

    Args:
        length: committed tokens that stay.
        rows: tree rows that stay behind them, in their new order; all others go.
        num_committed: number of `rows`, from the first, that become text.
    """

    length: int
    rows: tuple[int, ...] = ()
    num_committed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """First the move, then the pass; either may be left out. The rows of a pass become the last rows of the tree."""

    move: CacheMove | None = None
    inputs: ForwardInput | None = None
