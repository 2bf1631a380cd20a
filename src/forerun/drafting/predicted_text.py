"""A text given by the user that the answer is expected to resemble, and the answer's current position in it."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from forerun.core.drafter_config import MAX_MATCH, MIN_MATCH
from forerun.drafting.lookup_chain import Continuation

MOST_PLACES: Final = 64  # matches examined on either side, to bound the time on predictions that repeat themselves


class PredictedText:
    """Gives continuations of a growing text from the prediction; `LookupChain` uses it like a `PromptIndex`.

    The text is compared with the prediction token by token, from the start of both. Where they differ, the text's last
    tokens, at least MIN_MATCH, are looked up in the prediction, as in prompt lookup.

    Args:
        token_ids: the prediction.
    """

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._token_ids = list(token_ids)
        self._written: list[int] = []
        self._place, self._num_matched, self._is_lost = 0, 0, False  # if lost, the position of the difference
        self._index: dict[tuple[int, ...], list[int]] | None = None  # MIN_MATCH tokens to the positions after them

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append tokens to the text."""
        for token_id in token_ids:
            self._written.append(token_id)
            if not self._is_lost and self._token_ids[self._place : self._place + 1] == [token_id]:
                self._place, self._num_matched = self._place + 1, self._num_matched + 1
            else:
                self._find()

    def continuation(self, limit: int) -> Continuation:
        """Up to `limit` next tokens of the prediction; none if the text no longer matches it."""
        if self._is_lost:
            return Continuation(token_ids=[], match_length=0)
        token_ids = self._token_ids[self._place : self._place + limit]
        return Continuation(token_ids=token_ids, match_length=min(self._num_matched, MAX_MATCH))

    def _find(self) -> None:
        """Continue after the longest match; among equal ones, the first after the current position."""
        if self._index is None:  # built late, because a correct prediction never needs it
            self._index = index_of(self._token_ids)
        places = self._index.get(tuple(self._written[-MIN_MATCH:]), [])
        self._is_lost = not places
        if places:
            ahead = bisect_right(places, self._place)
            behind = places[max(0, ahead - MOST_PLACES) : ahead]
            self._place = max([*places[ahead : ahead + MOST_PLACES], *behind], key=self._match_length)
            self._num_matched = self._match_length(self._place)

    def _match_length(self, place: int) -> int:
        """How many tokens before this position equal the last tokens of the text, at most MAX_MATCH."""
        most = min(place, len(self._written), MAX_MATCH)
        same = (self._token_ids[place - back] == self._written[-back] for back in range(1, most + 1))
        return next((length for length, is_same in enumerate(same) if not is_same), most)


def index_of(token_ids: Sequence[int]) -> dict[tuple[int, ...], list[int]]:
    """Every run of MIN_MATCH tokens, mapped to the positions after it, ascending."""
    places: dict[tuple[int, ...], list[int]] = {}
    for place in range(MIN_MATCH, len(token_ids) + 1):
        places.setdefault(tuple(token_ids[place - MIN_MATCH : place]), []).append(place)
    return places
