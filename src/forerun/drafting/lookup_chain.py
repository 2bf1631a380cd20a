"""Prompt lookup as a chain, alone or in another drafter's tree: free guesses where the text repeats itself."""

from collections.abc import Sequence

from forerun.core.drafter_config import MAX_MATCH, MIN_MATCH
from forerun.model.runner import shared_length
from forerun.speculation.growth import BestFirstGrowth
from forerun.speculation.prompt_index import Continuation, LookupRecord, PromptIndex
from forerun.speculation.tree import TokenTree


class LookupChain:
    """Hangs one looked-up chain into a tree and learns what such chains are worth.

    A confident chain fills the cut with likely nodes, so that the growth finds less that could enter and stops early:
    draft forwards are saved, not only added to.
    """

    def __init__(self, *, num_tokens: int, min_match: int = MIN_MATCH, max_match: int = MAX_MATCH) -> None:
        self._num_tokens, self._min_match, self._max_match = num_tokens, min_match, max_match
        self._record = LookupRecord()

    def begin(self, prompt_ids: Sequence[int]) -> None:
        self._index = PromptIndex(min_match=self._min_match, max_match=self._max_match)
        self._index.extend(prompt_ids)
        self._hung = Continuation(token_ids=[], match_length=0)
        self._pending: list[tuple[Continuation, int]] = []  # chains that came true so far, and how far

    def follow(self) -> None:
        """Take note of the current continuation, which somebody else hangs into a tree."""
        self._hung = self._index.continuation(self._num_tokens)

    def log_probs(self) -> list[list[float]]:
        """What every token of a chain is worth, for each length of its match, shortest first."""
        lengths = range(self._min_match, self._max_match + 1)
        return [self._record.log_probs(length, self._num_tokens) for length in lengths]

    def hang_into(self, tree: TokenTree | BestFirstGrowth) -> None:
        """Add the current continuation below the root."""
        self.follow()
        token_ids = self._hung.token_ids
        tree.add_chain(token_ids, self._record.log_probs(self._hung.match_length, len(token_ids)))

    def accept(self, token_ids: Sequence[int]) -> None:
        """Compare the text with the chains hung by now, whether or not all of them was verified.

        A chain is followed until it goes wrong or ends, over several rounds: what no cut ever had room for is learnt
        about too.
        """
        followed, self._pending = [*self._pending, (self._hung, 0)], []
        for chain, num_true in followed:
            left = chain.token_ids[num_true : num_true + len(token_ids)]
            num_same = shared_length(left, token_ids)
            end, is_broken = num_true + num_same, num_same < len(left)
            self._record.count(chain.match_length, range(num_true, end), is_broken=is_broken)
            if not is_broken and end < len(chain.token_ids):
                self._pending.append((chain, end))
        self._index.extend(token_ids)
