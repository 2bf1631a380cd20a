"""The common prefix of two sequences."""

from collections.abc import Sequence


def shared_length(left: Sequence[object], right: Sequence[object]) -> int:
    """Length of the common prefix of two sequences, such as texts or lists of token ids."""
    limit = min(len(left), len(right))
    return next((place for place in range(limit) if left[place] != right[place]), limit)
