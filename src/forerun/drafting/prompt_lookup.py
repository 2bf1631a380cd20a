"""Prompt lookup: the tokens that followed an earlier occurrence of the last few tokens, as a chain, alone or in another
drafter's tree. In repetitive text its guesses cost nothing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import MAX_MATCH, MIN_MATCH, PromptLookup
from forerun.core.shared_length import shared_length
from forerun.drafting.drafter import NO_NEWS, Drafter, DraftOutcome, DraftReport
from forerun.drafting.policies import BEST_LOOKUP, Loading, LookupPolicy
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.growth import BestFirstGrowth
from forerun.speculation.referee.budget import ProposedTree, RowBudget
from forerun.speculation.tree import TokenTree

PRIOR_RATE: Final = 0.5  # assumed acceptance rate of looked-up tokens until it is measured
LONG_MATCHES: Final = ((10, 0.85), (6, 0.7))  # (tokens of a match, the rate assumed after it)
MATCHES: Final = tuple(range(MAX_MATCH, MIN_MATCH - 1, -1))  # of chains in trees


class PromptLookupDrafter(Drafter):
    """Proposes one chain: the continuation of the longest suffix that occurred before."""

    def __init__(self, config: PromptLookup, policy: LookupPolicy = BEST_LOOKUP) -> None:
        self.verify_width = config.verify_width
        self._chain = LookupChain(num_tokens=config.verify_width - 1, lengths=policy.lengths)

    def begin(
        self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None, owner: str = ""
    ) -> None:
        self._chain.read_prompt(prompt_ids)
        self._root = prompt_ids[-1]

    def propose(self, budget: RowBudget) -> ProposedTree:
        tree = TokenTree(self._root)
        self._chain.hang_into(tree)
        return ProposedTree(tree=tree)

    def told(self, outcome: DraftOutcome) -> DraftReport:
        if not outcome.is_own:
            self._chain.follow()  # measures the acceptance of the chain it would have proposed
        self._chain.accept(outcome.tokens)
        self._root = outcome.tokens[-1]
        return NO_NEWS


def load(config: PromptLookup, loading: Loading) -> PromptLookupDrafter:
    return PromptLookupDrafter(config, loading.policies.lookup)


class LookupChain:
    """Adds one looked-up chain to a tree and measures the acceptance of such chains.

    A chain of likely nodes also saves draft passes: fewer other nodes can enter the proposal, so the tree stops growing
    earlier.

    Args:
        prior_rate: assumed acceptance rate of looked-up tokens until it is measured.
    """

    def __init__(self, *, num_tokens: int, lengths: Sequence[int] = MATCHES, prior_rate: float = PRIOR_RATE) -> None:
        self._num_tokens = num_tokens
        self._lengths = lengths
        self._record = LookupRecord(prior_rate)

    def read_prompt(self, prompt_ids: Sequence[int]) -> None:
        """Start a request; continuations are looked up in its own text."""
        index = PromptIndex(self._lengths)
        index.extend(prompt_ids)
        self.look_up_in(index)

    def look_up_in(self, index: "LookedUp") -> None:
        """Start a request; continuations are looked up in `index`."""
        self._index = index
        self._hung = Continuation(token_ids=[], match_length=0)
        self._pending: list[tuple[Continuation, int]] = []  # chains correct so far, with their accepted lengths

    def follow(self) -> None:
        """Take the current continuation as the chain, without adding it to a tree."""
        self._hung = self._index.continuation(self._num_tokens)

    def log_probs(self) -> list[list[float]]:
        """Log-probabilities of a chain's tokens, for each match length, shortest first."""
        return [self._record.log_probs(length, self._num_tokens) for length in reversed(self._lengths)]

    def hang_into(self, tree: TokenTree | BestFirstGrowth) -> None:
        """Add the current continuation below the root."""
        self.follow()
        token_ids = self._hung.token_ids
        tree.add_chain(token_ids, self._record.log_probs(self._hung.match_length, len(token_ids)))

    def accept(self, token_ids: Sequence[int]) -> None:
        """Compare committed tokens with the chains added so far, whether or not they were verified in full.

        A chain is compared over several rounds until it is wrong or ends, so tokens that no proposal had room for are
        counted too.
        """
        followed = [*self._pending, (self._hung, 0)]
        self._pending = []
        for chain, num_true in followed:
            left = chain.token_ids[num_true : num_true + len(token_ids)]
            num_same = shared_length(left, token_ids)
            end = num_true + num_same
            is_broken = num_same < len(left)
            self._record.count(chain.match_length, range(num_true, end), is_broken=is_broken)
            if not is_broken and end < len(chain.token_ids):
                self._pending.append((chain, end))
        self._index.extend(token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """The tokens after an earlier occurrence of the text's last `match_length` tokens; empty if there was none."""

    token_ids: list[int]
    match_length: int


class LookedUp(Protocol):
    """An index in which continuations of a growing text are looked up."""

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append tokens to the text."""
        ...

    def continuation(self, limit: int) -> Continuation:
        """Up to `limit` tokens that may come next."""
        ...


class PromptIndex:
    """An index of every n-gram of a growing text with one of the given lengths, the longest first.

    Source: prompt lookup decoding (A. Saxena, 2023); transformers' prompt_lookup_num_tokens. Ours is an incremental
    index rather than a scan of the whole text each round.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = lengths
        self._token_ids: list[int] = []
        self._next_place: dict[
            tuple[int, ...], int
        ] = {}  # n-gram to the position after its latest occurrence that another token follows

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append tokens to the text. An n-gram is indexed once a token follows it, so the text's end never matches
        itself."""
        for token_id in token_ids:
            place = len(self._token_ids)
            for length in self._lengths:
                if length <= place:
                    self._next_place[tuple(self._token_ids[place - length : place])] = place
            self._token_ids.append(token_id)

    def continuation(self, limit: int) -> Continuation:
        """Up to `limit` tokens that followed the latest earlier occurrence of the longest matching suffix.

        If fewer than `limit` tokens follow it, they are repeated, as in a periodic text.
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
    """Acceptance rates of looked-up tokens by match length and position in the chain, to rank them in a tree.

    Later tokens of a chain are accepted more often if the earlier ones were, since texts repeat long passages. Each
    cell starts from a prior rate that counts as `PRIOR_TRIALS` trials, and old trials lose weight after `MEMORY`.
    """

    PRIOR_TRIALS = 4.0
    MEMORY = 64.0

    def __init__(self, prior_rate: float = PRIOR_RATE) -> None:
        self._prior_rate = prior_rate
        self._accepted: dict[tuple[int, int], float] = {}
        self._tried: dict[tuple[int, int], float] = {}

    def log_probs(self, match_length: int, num_tokens: int) -> list[float]:
        """Log-probability, below 0, that each token of a chain is accepted if those before it are."""
        log_probs = [self._log_prob((match_length, stretch)) for stretch in range(stretch_of(num_tokens - 1) + 1)]
        return [log_probs[stretch_of(place)] for place in range(num_tokens)]

    def count(self, match_length: int, accepted: range, *, is_broken: bool) -> None:
        """Count a chain's tokens at the positions `accepted` as accepted, and the next one as wrong if `is_broken`."""
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
        rate = next((rate for length, rate in LONG_MATCHES if cell[0] >= length), self._prior_rate)
        accepted = self._accepted.get(cell, 0.0) + rate * self.PRIOR_TRIALS
        return math.log(accepted / (self._tried.get(cell, 0.0) + self.PRIOR_TRIALS))


def stretch_of(place: int) -> int:
    """Group positions as 0; 1 and 2; 3 to 6; 7 to 14; and so on, each group twice as long as the one before."""
    return (place + 1).bit_length() - 1
