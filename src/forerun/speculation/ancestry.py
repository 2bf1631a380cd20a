"""Who may attend to whom."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def ancestry_matrix(parents: Sequence[int]) -> NDArray[np.bool_]:
    """[N, N] bool: row i is true at i and at every ancestor of i. parents[i] < i; the root's parent is -1."""
    matrix = np.zeros((len(parents), len(parents)), dtype=np.bool_)
    for node, parent in enumerate(parents):
        if parent >= 0:
            matrix[node] = matrix[parent]
        matrix[node, node] = True
    return matrix
