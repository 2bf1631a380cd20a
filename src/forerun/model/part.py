"""A part of a linear layer's weight: some of its outputs, or some of its inputs, with padding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Elements `start` to `stop` - 1 of a dimension, followed by `padding` zeros."""

    start: int
    stop: int
    padding: int = 0

    @property
    def num_real(self) -> int:
        """Number of elements without the padding."""
        return self.stop - self.start

    @property
    def size(self) -> int:
        """Number of elements with the padding."""
        return self.num_real + self.padding

    def scaled(self, factor: int, offset: int = 0) -> "Piece":
        """The same piece in smaller elements, `factor` for each of these, counted from `offset`."""
        return Piece(
            start=offset + factor * self.start, stop=offset + factor * self.stop, padding=factor * self.padding
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a linear layer's weight; by default all of it.

    Args:
        rows: outputs: a list of pieces for each stored weight that the layer is made of (for example queries, keys and
            values), counted from the layer's first output. None: all outputs.
        columns: inputs; None: all.
    """

    rows: Sequence[Sequence[Piece]] | None = None
    columns: Piece | None = None


WHOLE: Final = Part()
