"""Where the last few tokens occurred before: n-gram continuations of the text so far."""

from collections.abc import Sequence


class PromptIndex:
    """An index of every n-gram of a growing text, min_match to max_match tokens long.

    Source: prompt lookup decoding (A. Saxena, 2023); transformers' prompt_lookup_num_tokens. Ours is an incremental
    index rather than a scan of the whole text each round.
    """

    def __init__(self, *, min_match: int, max_match: int) -> None:
        self._lengths = range(max_match, min_match - 1, -1)
        self._token_ids: list[int] = []
        self._next_place: dict[tuple[int, ...], int] = {}  # n-gram to the place after its latest occurrence but the last

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append tokens to the text. An n-gram is indexed once a token follows it, so no text continues itself."""
        for token_id in token_ids:
            place = len(self._token_ids)
            for length in self._lengths:
                if length <= place:
                    self._next_place[tuple(self._token_ids[place - length : place])] = place
            self._token_ids.append(token_id)

    def continuation(self, limit: int) -> list[int]:
        """Up to `limit` tokens that followed the latest earlier occurrence of the longest matching suffix."""
        for length in self._lengths:
            if length <= len(self._token_ids):
                place = self._next_place.get(tuple(self._token_ids[-length:]))
                if place is not None:
                    return self._token_ids[place : place + limit]
        return []
