"""Prompt lookup as a branch of another drafter's tree: free guesses where the text repeats itself."""

from collections.abc import Sequence

from forerun.speculation.growth import BestFirstGrowth
from forerun.speculation.prompt_index import Continuation, LookupRecord, PromptIndex
from forerun.speculation.tree import TokenTree

MIN_MATCH, MAX_MATCH = 2, 5


class LookupChain:
    """Hangs one looked-up chain into a tree and learns what such chains are worth.

    A confident chain fills the cut with likely nodes, so that the growth finds less that could enter and stops early:
    draft forwards are saved, not only added to.
    """

    def __init__(self, *, num_tokens: int) -> None:
        self._num_tokens = num_tokens
        self._record = LookupRecord()

    def begin(self, prompt_ids: Sequence[int]) -> None:
        self._index = PromptIndex(min_match=MIN_MATCH, max_match=MAX_MATCH)
        self._index.extend(prompt_ids)

    def hang_into(self, tree: TokenTree | BestFirstGrowth) -> None:
        """Add the current continuation below the root."""
        self._hung: Continuation = self._index.continuation(self._num_tokens)
        if self._hung.token_ids:
            tree.add_chain(self._hung.token_ids, self._record.log_prob(self._hung.match_length))

    def accept(self, token_ids: Sequence[int]) -> None:
        """Compare the round's tokens with the chain, whether or not all of it was verified."""
        hung, compared = self._hung.token_ids, min(len(self._hung.token_ids), len(token_ids))
        num_same = next((place for place in range(compared) if hung[place] != token_ids[place]), compared)
        if compared:
            self._record.count(self._hung.match_length, num_proposed=compared, num_accepted=num_same)
        self._index.extend(token_ids)
