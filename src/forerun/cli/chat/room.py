"""Room in the context for the next answer: which of the oldest turns have to be dropped."""

from bisect import bisect_left
from collections.abc import Callable
from typing import Final

LEAST_ANSWER: Final = 256  # tokens that an answer without a limit should have room for, as generate's have
LEAST_SHARE: Final = 4  # or this part of a context that is shorter than four such answers
KEPT_SHARE: Final = 2  # half of the context is kept, as in llama.cpp, so that turns are not dropped again soon


def turns_to_drop(
    num_tokens: Callable[[int], int], *, num_dropped: int, num_turns: int, max_length: int, num_new: int | None
) -> int:
    """How many of the oldest turns must be dropped, including those that were dropped before.

    Args:
        num_tokens: tokens of the prompt by the number of turns that are dropped.
        num_new: the limit of the answer in tokens, if there is one.

    Returns:
        `num_dropped` if the prompt fits, and also if it would not fit even without any turn.
    """
    wanted = num_new or min(LEAST_ANSWER, max_length // LEAST_SHARE)
    limit = max_length - wanted
    alone = num_tokens(num_turns)
    if num_tokens(num_dropped) <= limit or alone >= max_length:
        return num_dropped
    last = num_tokens(num_turns - 1)  # the last turn is kept if it fits, as the question may be about it
    kept = max(last if last <= limit else alone, min(limit, max_length // KEPT_SHARE))
    return bisect_left(range(num_turns), True, lo=num_dropped, key=lambda number: num_tokens(number) <= kept)
