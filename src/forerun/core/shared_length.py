"""How much two lists of token ids have in common."""

from collections.abc import Sequence


def shared_length(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common start of two id lists."""
    limit = min(len(left), len(right))
    return next((place for place in range(limit) if left[place] != right[place]), limit)
