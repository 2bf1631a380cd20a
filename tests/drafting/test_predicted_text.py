"""Where a text stands in a predicted one: as predicted, after edits, and where it comes back."""

import random

from forerun.core.drafter_config import MAX_MATCH, MIN_MATCH
from forerun.drafting.predicted import PredictedText

PREDICTION = list(range(100, 140))


def after(written: list[int], prediction: list[int] = PREDICTION, limit: int = 5) -> list[int]:
    """What comes next by the prediction once this was written."""
    text = PredictedText(prediction)
    text.extend(written)
    return text.continuation(limit).token_ids


def test_it_begins_at_its_begin_and_follows_token_by_token_to_its_end() -> None:
    text = PredictedText(PREDICTION)
    for place, token_id in enumerate(PREDICTION):
        found = text.continuation(5)
        assert found.token_ids == PREDICTION[place : place + 5]
        assert found.match_length == min(place, MAX_MATCH)
        text.extend([token_id])
    assert text.continuation(5).token_ids == []


def test_a_text_that_leaves_it_gets_nothing_until_its_last_tokens_are_there() -> None:
    assert after([*PREDICTION[:3], 7]) == []
    assert after([*PREDICTION[:3], 7, PREDICTION[4]]) == []
    assert after([*PREDICTION[:3], 7, *PREDICTION[4:6]]) == PREDICTION[6:11], "a token replaced"
    assert after([*PREDICTION[:3], 7, 8, 9, *PREDICTION[3:5]]) == PREDICTION[5:10], "some inserted"
    assert after([*PREDICTION[:3], *PREDICTION[20:22]]) == PREDICTION[22:27], "some left out"
    assert after([*PREDICTION[:30], *PREDICTION[5:7]]) == PREDICTION[7:12], "some written again"


def test_of_several_places_the_longest_match_counts_then_the_next_one_after_where_the_text_left() -> None:
    pair = [1, 2]
    prediction = [*pair, 50, *pair, 51, 9, *pair, 52, *pair, 53]
    assert after([*pair, 60, *pair], prediction, 1) == [51], "the first pair is behind the text already"
    assert after([*pair, 60, 9, *pair], prediction, 1) == [52], "three tokens match there"
    assert after([*prediction, 60, *pair], prediction, 1) == [50], "all are behind: the first"


def test_what_comes_next_has_always_just_been_matched() -> None:
    """On texts of few tokens, so that all of this happens often; the whole text at once is as good as bit by bit."""
    rng = random.Random(0)
    for _ in range(300):
        prediction = [rng.randrange(4) for _ in range(rng.randint(0, 30))]
        written = [rng.randrange(4) for _ in range(rng.randint(0, 30))]
        text = PredictedText(prediction)
        for token_id in written:
            text.extend([token_id])
        found = text.continuation(3)
        assert found.token_ids == after(written, prediction, 3)
        if not found.token_ids or written == prediction[: len(written)]:
            continue
        place = text._place
        assert found.token_ids == prediction[place : place + 3]
        assert MIN_MATCH <= found.match_length <= MAX_MATCH
        assert written[-found.match_length :] == prediction[place - found.match_length : place]
