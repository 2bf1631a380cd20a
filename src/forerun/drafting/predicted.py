"""Draft from a text that the user expects (OpenAI's `prediction`) and from tokens that a grammar forces."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from forerun.core.drafter_config import MAX_MATCH, MIN_MATCH
from forerun.core.steps import PREDICTION, Guessers
from forerun.drafting.drafter import DraftReport
from forerun.drafting.prompt_lookup import Continuation, LookupChain
from forerun.speculation.referee.budget import ProposedTree
from forerun.speculation.tree import TokenTree
from forerun.text.constraint import Constraint

MOST_PLACES: Final = 64  # matches examined on either side, to bound the time on predictions that repeat themselves
FORCED: Final = -1e-3  # log-probability of a forced token: a model rarely writes the same text in other tokens
EXPECTED_RATE: Final = 0.95  # assumed acceptance rate of predicted tokens until it is measured
PREDICTED: Final = DraftReport(drafted_by=PREDICTION, guessers=Guessers(grown=PREDICTION, chain=PREDICTION))


class Prediction:
    """Proposes the next tokens of the predicted text, or those that the grammar forces.

    A correct prediction needs no draft pass, and it is used even while the drafters rest or are down.

    Args:
        verify_width: the most rows of a proposal, root included.
    """

    def __init__(self, verify_width: int) -> None:
        self._num_tokens = max(0, verify_width - 1)
        self._chain = LookupChain(num_tokens=self._num_tokens, prior_rate=EXPECTED_RATE)
        self._constraint: Constraint | None = None
        self.is_forced = False  # the last proposal is what the grammar forces

    def expect(
        self, token_ids: Sequence[int], written_ids: Sequence[int], constraint: Constraint | None = None
    ) -> None:
        """Expect a text.

        Args:
            token_ids: the predicted text.
            written_ids: what is already written of the answer.
            constraint: the grammar, whose forced tokens are predicted too.
        """
        self._constraint = constraint
        text = PredictedText(token_ids)
        text.extend(written_ids)
        self._chain.look_up_in(text)

    def propose(self, root: int) -> ProposedTree:
        """The chain that is expected below the root; the root alone if none is."""
        tree = TokenTree(root)
        forced = [] if self._constraint is None else self._constraint.forced()
        self.is_forced = bool(forced)
        if forced:
            self._chain.follow()
            forced = forced[: self._num_tokens]
            tree.add_chain(forced, [FORCED] * len(forced))
        else:
            self._chain.hang_into(tree)
        return ProposedTree(tree=tree)

    def told(self, token_ids: Sequence[int]) -> None:
        """Learn what was written."""
        self._chain.accept(token_ids)


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
        self._place = 0  # if lost, the position of the difference
        self._num_matched = 0
        self._is_lost = False
        self._index: dict[tuple[int, ...], list[int]] | None = None  # MIN_MATCH tokens to the positions after them

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append tokens to the text."""
        for token_id in token_ids:
            self._written.append(token_id)
            if not self._is_lost and self._token_ids[self._place : self._place + 1] == [token_id]:
                self._place = self._place + 1
                self._num_matched = self._num_matched + 1
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
