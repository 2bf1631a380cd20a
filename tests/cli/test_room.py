"""Which of the oldest turns have to go for the next answer."""

from collections.abc import Sequence

import pytest

from forerun.cli.chat.session import turns_to_drop


@pytest.mark.parametrize(
    ("lengths", "num_new", "num_dropped"),
    [
        ((100, 100, 100), None, 0),  # fits
        ((300, 200, 200, 100), None, 2),  # with room for an answer of a quarter, down to half the context
        ((300, 200, 200, 100), 10, 0),
        ((300, 500, 100, 100), 10, 2),
        ((900, 600), None, 1),  # the last turn stays where it can, beyond half the context
        ((300, 700), 300, 2),
        ((300, 700), 990, 2),  # not even alone: the engine says so
        ((), None, 0),
    ],
)
def test_turns_go_until_half_the_context_is_free_but_the_last_one_stays(
    lengths: Sequence[int], num_new: int | None, num_dropped: int
) -> None:
    def num_tokens(number: int) -> int:
        return 20 + sum(lengths[number:])

    found = turns_to_drop(num_tokens, num_dropped=0, num_turns=len(lengths), max_length=1000, num_new=num_new)
    assert found == num_dropped


def test_a_question_that_does_not_fit_alone_drops_nothing() -> None:
    found = turns_to_drop(lambda number: 2000 - number, num_dropped=1, num_turns=3, max_length=1000, num_new=None)
    assert found == 1
