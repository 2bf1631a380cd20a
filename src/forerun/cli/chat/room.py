"""Room in the context for the next answer: which of the oldest turns have to go."""

from bisect import bisect_left
from collections.abc import Callable
from typing import Final

LEAST_ANSWER: Final = 256  # tokens that an answer without a limit should have room for, as generate's have
LEAST_SHARE: Final = 4  # or this part of a context that is shorter than four such answers
KEPT_SHARE: Final = 2  # this part stays, as in llama.cpp, so that it is a while until turns must go again


def turns_to_drop(
    num_tokens: Callable[[int], int], *, num_dropped: int, num_turns: int, max_length: int, num_new: int | None
) -> int:
    """How many of the oldest turns must not be sent any more, those included that were dropped before.

    Args:
        num_tokens: of the prompt by the number of turns that are left out.
        num_new: tokens that the answer is allowed, where there is a limit.

    Returns:
        `num_dropped` where the prompt fits, and where it would not fit alone.
    """
    wanted = num_new or min(LEAST_ANSWER, max_length // LEAST_SHARE)
    limit, alone = max_length - wanted, num_tokens(num_turns)
    if num_tokens(num_dropped) <= limit or alone >= max_length:
        return num_dropped
    last = num_tokens(num_turns - 1)  # the turn that the question may be about stays where it can
    kept = max(last if last <= limit else alone, min(limit, max_length // KEPT_SHARE))
    return bisect_left(range(num_turns), True, lo=num_dropped, key=lambda number: num_tokens(number) <= kept)
