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
    """How often looked-up tokens were accepted, by match length: what a continuation is worth in a tree.

    Starts from a guess that counts as many trials as `PRIOR_TRIALS`, and forgets at `MEMORY` trials.
    """

    PRIOR_RATE, PRIOR_TRIALS, MEMORY = 0.5, 4.0, 64.0

    def __init__(self) -> None:
        self._accepted: dict[int, float] = {}
        self._tried: dict[int, float] = {}

    def log_prob(self, match_length: int) -> float:
        """Log of the chance that the next looked-up token is the target's choice, below 0."""
        accepted = self._accepted.get(match_length, 0.0) + self.PRIOR_RATE * self.PRIOR_TRIALS
        return math.log(accepted / (self._tried.get(match_length, 0.0) + self.PRIOR_TRIALS))

    def count(self, match_length: int, *, num_proposed: int, num_accepted: int) -> None:
        """Take one chain's outcome: every accepted token and the first rejected one is a trial."""
        num_tried = min(num_accepted + 1, num_proposed)
        tried = self._tried.get(match_length, 0.0)
        keep = min(1.0, self.MEMORY / (tried + num_tried))
        self._accepted[match_length] = keep * (self._accepted.get(match_length, 0.0) + num_accepted)
        self._tried[match_length] = keep * (tried + num_tried)
