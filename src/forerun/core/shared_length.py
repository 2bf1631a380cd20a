"""The common prefix of two lists of token ids."""

from collections.abc import Sequence


def shared_length(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common prefix of two id lists."""
    limit = min(len(left), len(right))
    return next((place for place in range(limit) if left[place] != right[place]), limit)
