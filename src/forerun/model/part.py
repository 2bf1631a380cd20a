"""What is wanted of a linear layer's weight: some of its outputs, or some of its inputs, with padding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Elements `start` to `stop` - 1 of a dimension, and `padding` zeros behind them."""

    start: int
    stop: int
    padding: int = 0

    @property
    def num_real(self) -> int:
        """Elements without the padding."""
        return self.stop - self.start

    @property
    def size(self) -> int:
        """Elements, padding included."""
        return self.num_real + self.padding

    def scaled(self, factor: int, offset: int = 0) -> "Piece":
        """The same of elements that are `factor` each, the first one at `offset`."""
        return Piece(
            start=offset + factor * self.start, stop=offset + factor * self.stop, padding=factor * self.padding
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What is wanted of a linear layer's weight; by default all of it.

    Args:
        rows: outputs, by the stored weights that make up the layer's, queries, keys and values say: the pieces of each,
            counted from the first output of all. None: all outputs.
        columns: inputs; None: all.
    """

    rows: Sequence[Sequence[Piece]] | None = None
    columns: Piece | None = None


WHOLE: Final = Part()
