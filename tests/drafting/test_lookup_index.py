"""The n-gram index against a scan of the whole text, and the record of what its chains were worth."""

import math
import random

import pytest

from forerun.drafting.prompt_lookup import LookupRecord, PromptIndex


def scan(text: list[int], lengths: list[int]) -> tuple[int, int] | None:
    """Length of the longest suffix that occurred before, and the place after its latest earlier occurrence."""
    for length in lengths:
        suffix = text[-length:]
        for start in range(len(text) - length - 1, -1, -1):
            if len(suffix) == length and text[start : start + length] == suffix:
                return length, start + length
    return None


@pytest.mark.parametrize("seed", range(20))
def test_the_index_finds_what_a_scan_finds(seed: int) -> None:
    rng = random.Random(seed)
    lengths = sorted(rng.sample(range(1, 7), rng.randint(1, 4)), reverse=True)
    index = PromptIndex(lengths)
    text: list[int] = []
    num_found = 0
    for _ in range(40):
        piece = [rng.randrange(3) for _ in range(rng.randint(0, 4))]
        index.extend(piece)
        text += piece
        limit = rng.randint(0, 6)
        found = index.continuation(limit)
        expected = scan(text, lengths)
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


def test_the_latest_occurrence_and_the_longest_match_win() -> None:
    index = PromptIndex((2, 1))
    index.extend([1, 2, 7, 1, 2, 8, 5, 2, 9, 1, 2])
    assert index.continuation(2).token_ids == [8, 5]


def chances(record: LookupRecord, match_length: int, num_tokens: int = 16) -> list[float]:
    return [math.exp(value) for value in record.log_probs(match_length, num_tokens)]


def test_what_came_true_counts_for_its_stretch_and_match_length_alone() -> None:
    record = LookupRecord()
    record.count(3, range(1, 2), is_broken=False)
    assert chances(record, 3, 8) == pytest.approx([0.5, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.5])
    assert chances(record, 2, 8) == pytest.approx([0.5] * 8)


def test_a_broken_chain_counts_against_the_place_where_it_broke() -> None:
    record = LookupRecord()
    record.count(2, range(3), is_broken=True)  # places 0 to 2 came true, 3 did not
    assert chances(record, 2, 8) == pytest.approx([3 / 5, 4 / 6, 4 / 6, *[2 / 5] * 4, 0.5])
    record.count(2, range(7, 7), is_broken=True)  # its very first token of this round was wrong
    assert chances(record, 2, 8)[7] == pytest.approx(2 / 5)
