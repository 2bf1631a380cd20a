"""Where the last few tokens occurred before: n-gram continuations of the text so far."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """What followed an earlier occurrence of the text's last `match_length` tokens; empty when there was none."""

    token_ids: list[int]
    match_length: int


class PromptIndex:
    """An index of every n-gram of a growing text, min_match to max_match tokens long.

    Source: prompt lookup decoding (A. Saxena, 2023); transformers' prompt_lookup_num_tokens. Ours is an incremental
    index rather than a scan of the whole text each round.
    """

    def __init__(self, *, min_match: int, max_match: int) -> None:
        self._lengths = range(max_match, min_match - 1, -1)
        self._token_ids: list[int] = []
        self._next_place: dict[
            tuple[int, ...], int
        ] = {}  # n-gram to the place after its latest occurrence but the last

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append tokens to the text. An n-gram is indexed once a token follows it, so no text continues itself."""
        for token_id in token_ids:
            place = len(self._token_ids)
            for length in self._lengths:
                if length <= place:
                    self._next_place[tuple(self._token_ids[place - length : place])] = place
            self._token_ids.append(token_id)

    def continuation(self, limit: int) -> Continuation:
        """Up to `limit` tokens that followed the latest earlier occurrence of the longest matching suffix.

        Where that occurrence is too close to the end to give them all, the tokens found are read on from their start,
        as a text that repeats itself would go on.
        """
        for length in self._lengths:
            if length <= len(self._token_ids):
                place = self._next_place.get(tuple(self._token_ids[-length:]))
                if place is not None:
                    period = len(self._token_ids) - place
                    token_ids = [self._token_ids[place + step % period] for step in range(limit)]
                    return Continuation(token_ids=token_ids, match_length=length)
        return Continuation(token_ids=[], match_length=0)


class LookupRecord:
    """How often looked-up tokens were accepted, by match length and place in the chain: what it is worth in a tree.

    A chain whose first tokens came true is likelier to go on than a fresh one: texts repeat whole stretches. A cell
    starts from a guess that counts as many trials as `PRIOR_TRIALS`, and forgets at `MEMORY` trials.
    """

    PRIOR_RATE, PRIOR_TRIALS, MEMORY = 0.5, 4.0, 64.0

    def __init__(self) -> None:
        self._accepted: dict[tuple[int, int], float] = {}
        self._tried: dict[tuple[int, int], float] = {}

    def log_probs(self, match_length: int, num_tokens: int) -> list[float]:
        """Log of the chance, below 0, of every token of a chain to be the target's choice after those before it."""
        log_probs = [self._log_prob((match_length, stretch)) for stretch in range(stretch_of(num_tokens - 1) + 1)]
        return [log_probs[stretch_of(place)] for place in range(num_tokens)]

    def count(self, match_length: int, accepted: range, *, is_broken: bool) -> None:
        """Take the outcome of a chain's tokens at the places `accepted`, and of the one after them if it was wrong."""
        for place in accepted:
            self._count((match_length, stretch_of(place)), True)
        if is_broken:
            self._count((match_length, stretch_of(accepted.stop)), False)

    def _count(self, cell: tuple[int, int], came_true: bool) -> None:
        tried = self._tried.get(cell, 0.0)
        keep = min(1.0, self.MEMORY / (tried + 1.0))
        self._accepted[cell] = keep * (self._accepted.get(cell, 0.0) + came_true)
        self._tried[cell] = keep * (tried + 1.0)

    def _log_prob(self, cell: tuple[int, int]) -> float:
        accepted = self._accepted.get(cell, 0.0) + self.PRIOR_RATE * self.PRIOR_TRIALS
        return math.log(accepted / (self._tried.get(cell, 0.0) + self.PRIOR_TRIALS))


def stretch_of(place: int) -> int:
    """Places 0; 1 and 2; 3 to 6; 7 to 14; and so on: each stretch twice as long as the one before."""
    return (place + 1).bit_length() - 1
