"""The target's features of text that a head has not read yet.

Legend: T rows, F features of a token, G size of a feature.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


class TextFeatures:
    """Features by their place in the text. The head drops those that it has read, so they are few.

    Args:
        columns: for each feature that the head reads its place among the tapped layers, which are in ascending order.
        dtype: that of the head.
    """

    def __init__(self, columns: Sequence[int], dtype: torch.dtype) -> None:
        self._columns = list(columns)
        self._dtype = dtype
        self._rows: dict[int, Tensor] = {}
        self._seen: tuple[int, Tensor] | None = None  # the place of the last verified tree's root, and its rows

    def __contains__(self, place: int) -> bool:
        return place in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def end(self) -> int:
        """The place after the last known feature; 0 if there is none."""
        return max(self._rows, default=-1) + 1

    def clear(self) -> None:
        """Drop everything."""
        self._rows = {}
        self._seen = None

    def read(self, place: int, features: Tensor) -> None:
        """Add features of committed tokens, from this place on."""
        rows = features.to(self._dtype, copy=True)
        self._rows |= zip(range(place, place + len(rows)), rows, strict=True)

    def read_tree(self, place: int, features: Tensor) -> None:
        """Add the features of a verified tree: the root's now, the others' once they are accepted."""
        self.read(place, features[:1])
        self._seen = place, features

    def accept(self, path: Sequence[int]) -> None:
        """Add the features of the accepted nodes of the last verified tree."""
        if self._seen is not None and path:
            place, features = self._seen
            self.read(place + 1, features[list(path)])
        self._seen = None if path else self._seen

    def rows(self, places: Sequence[int]) -> Tensor:
        """[T, F, G] of these places."""
        return torch.stack([self._rows[place] for place in places])[:, self._columns]

    def drop_before(self, place: int) -> None:
        """Drop the features before this place."""
        self._rows = {known: row for known, row in self._rows.items() if known >= place}
