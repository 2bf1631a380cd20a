"""A text that the answer probably resembles, given by the user, and where in it the answer stands."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from forerun.core.drafter_config import MAX_MATCH, MIN_MATCH
from forerun.drafting.lookup_chain import Continuation

MOST_PLACES: Final = 64  # looked at on either side: a prediction that repeats itself without end must not take long


class PredictedText:
    """What a growing text goes on with if it is the predicted one; `LookupChain` looks it up as in a `PromptIndex`.

    The text begins where the prediction begins, and follows it token by token. Where it leaves the prediction, its last
    tokens are looked for there, at least MIN_MATCH of them, as prompt lookup does.

    Args:
        token_ids: the prediction.
    """

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._token_ids = list(token_ids)
        self._written: list[int] = []
        self._place, self._num_matched, self._is_lost = 0, 0, False  # lost: the place is where the text left
        self._index: dict[tuple[int, ...], list[int]] | None = None  # last tokens to the places after them

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append tokens to the text."""
        for token_id in token_ids:
            self._written.append(token_id)
            if not self._is_lost and self._token_ids[self._place : self._place + 1] == [token_id]:
                self._place, self._num_matched = self._place + 1, self._num_matched + 1
            else:
                self._find()

    def continuation(self, limit: int) -> Continuation:
        """Up to `limit` tokens of the prediction that come next; none where the text has left it."""
        if self._is_lost:
            return Continuation(token_ids=[], match_length=0)
        token_ids = self._token_ids[self._place : self._place + limit]
        return Continuation(token_ids=token_ids, match_length=min(self._num_matched, MAX_MATCH))

    def _find(self) -> None:
        """Go on after the longest match, of equal ones the first that comes after where the text left."""
        if self._index is None:  # only now: a prediction that comes true is never looked through
            self._index = index_of(self._token_ids)
        places = self._index.get(tuple(self._written[-MIN_MATCH:]), [])
        self._is_lost = not places
        if places:
            ahead = bisect_right(places, self._place)
            behind = places[max(0, ahead - MOST_PLACES) : ahead]
            self._place = max([*places[ahead : ahead + MOST_PLACES], *behind], key=self._match_length)
            self._num_matched = self._match_length(self._place)

    def _match_length(self, place: int) -> int:
        """How many tokens before this place are the text's last ones, at most MAX_MATCH."""
        most = min(place, len(self._written), MAX_MATCH)
        same = (self._token_ids[place - back] == self._written[-back] for back in range(1, most + 1))
        return next((length for length, is_same in enumerate(same) if not is_same), most)


def index_of(token_ids: Sequence[int]) -> dict[tuple[int, ...], list[int]]:
    """Every MIN_MATCH tokens in a row to the places after them, ascending."""
    places: dict[tuple[int, ...], list[int]] = {}
    for place in range(MIN_MATCH, len(token_ids) + 1):
        places.setdefault(tuple(token_ids[place - MIN_MATCH : place]), []).append(place)
    return places
