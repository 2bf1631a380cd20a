"""Who may attend to whom."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class AncestryRows:
    """Rows of flags, each of which sees what its parent's row sees, and itself.

    Bytes rather than an array while they are few and short: a copy of a row is then one short call.
    """

    def __init__(self) -> None:
        self._rows: list[bytes] = []  # row i has i + 1 flags

    def add(self, parent: int) -> int:
        """Append a row below the row `parent`, -1 for none; return its number."""
        rows = self._rows
        number = len(rows)
        rows.append(rows[parent].ljust(number, b"\0") + b"\1" if parent >= 0 else b"\0" * number + b"\1")
        return number

    def matrix(self, first: int = 0) -> NDArray[np.bool_]:
        """[N - first, N] bool: the rows from `first` on, and which of all N they see."""
        num_rows = len(self._rows)
        flags = bytearray().join([row.ljust(num_rows, b"\0") for row in self._rows[first:]])
        return np.ndarray((num_rows - first, num_rows), np.bool_, flags)


def ancestry_matrix(parents: Sequence[int]) -> NDArray[np.bool_]:
    """[N, N] bool: row i is true at i and at every ancestor of i. parents[i] < i; the root's parent is -1."""
    rows = AncestryRows()
    for parent in parents:
        rows.add(parent)
    return rows.matrix()
