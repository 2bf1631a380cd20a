"""Check whether a text equals the one of drafter `none`, and if not, whether rounding can be the cause."""

from collections.abc import Sequence

from forerun.bench.records.answers import Match
from forerun.core.config import SamplingParams
from forerun.engine.engine import Engine


def compare(
    token_ids: Sequence[int],
    expected_ids: Sequence[int],
    prompt_ids: Sequence[int],
    params: SamplingParams,
    plain: Engine,
) -> Match:
    """Compare an answer with that of `none` to the same prompt.

    Args:
        plain: the engine of `none`, which computes its margin at the first difference.
    """
    length = min(len(token_ids), len(expected_ids))
    place = next((place for place in range(length) if token_ids[place] != expected_ids[place]), length)
    if place == len(token_ids) == len(expected_ids):
        return Match(first_difference=None)
    if place == length:
        return Match(first_difference=place)  # one text is a prefix of the other, so rounding is not the cause
    margin = plain.margin_after([*prompt_ids, *expected_ids[:place]], params)
    return Match(first_difference=place, margin=margin, is_near_tie=margin < plain.near_tie(params))
