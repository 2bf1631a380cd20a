"""The n-gram index against a scan of the whole text."""

import random

import pytest

from forerun.speculation.prompt_index import PromptIndex


def scan(text: list[int], min_match: int, max_match: int) -> tuple[int, int] | None:
    """Length of the longest suffix that occurred before, and the place after its latest earlier occurrence."""
    for length in range(max_match, min_match - 1, -1):
        suffix = text[-length:]
        for start in range(len(text) - length - 1, -1, -1):
            if len(suffix) == length and text[start : start + length] == suffix:
                return length, start + length
    return None


@pytest.mark.parametrize("seed", range(60))
def test_the_index_finds_what_a_scan_finds(seed: int) -> None:
    rng = random.Random(seed)
    min_match = rng.randint(1, 3)
    max_match = min_match + rng.randint(0, 3)
    index = PromptIndex(min_match=min_match, max_match=max_match)
    text: list[int] = []
    num_found = 0
    for _ in range(40):
        piece = [rng.randrange(3) for _ in range(rng.randint(0, 4))]
        index.extend(piece)
        text += piece
        limit = rng.randint(0, 6)
        found, expected = index.continuation(limit), scan(text, min_match, max_match)
        if expected is None:
            assert (found.token_ids, found.match_length) == ([], 0)
            continue
        length, place = expected
        known = text[place : place + limit]
        assert found.match_length == length
        assert len(found.token_ids) <= limit
        assert found.token_ids[: len(known)] == known
        num_found += bool(known)
    assert num_found > 0


def test_nothing_is_found_in_a_text_without_repetition() -> None:
    index = PromptIndex(min_match=1, max_match=3)
    index.extend(range(20))
    assert index.continuation(5).token_ids == []


def test_the_latest_occurrence_and_the_longest_match_win() -> None:
    index = PromptIndex(min_match=1, max_match=2)
    index.extend([1, 2, 7, 1, 2, 8, 5, 2, 9, 1, 2])
    assert index.continuation(2).token_ids == [8, 5]
